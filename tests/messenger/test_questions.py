"""Decode asks for news that were lost: nobody waits for what never comes, or gives up what does."""

import numpy as np
import pytest

from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import MAX_REASON, Counting, Ended, Endpoint, Over
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .pair import AUX_BYTES, DECODE, DST, PAGE_BYTES, PREFILL, SRC, pair, served, started, wire, written


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("opened", [False, True])
def test_a_decode_that_was_given_up_and_never_heard_of_it_asks_and_is_told(
    closed: bool, opened: bool
) -> None:
    """It was frozen for a while: what prefill said meanwhile went with the connection."""
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        if opened:
            both.prefill.open(1)
        assert both.prefill.lost(DECODE, Loss.SILENT) == [1]
        both.to_decode.clear()
        if closed:
            both.prefill.close(1)
        assert both.decode.poll(1) == (ReceiveState.COUNTING, None)
        both.asks()
        assert both.decode.poll(1) == (ReceiveState.FAILED, f"lost decode {DECODE}: {Loss.SILENT.value}")
        both.end(1)
        served(both, 2)


def test_a_pull_that_nobody_remembers_fails_and_the_next_is_served() -> None:
    """Prefill took a living decode for dead: one that is not told of it would ask in vain for ever."""
    with pair() as both:
        both.introduce()
        both.prefill.lost(DECODE, Loss.DEAD)
        both.pull(1, DST)
        for _ in range(2):
            both.asks()
            assert both.decode.poll(1) == (ReceiveState.COUNTING, None)  # units may be waiting to be counted
        both.asks()
        state, reason = both.decode.poll(1)
        assert state is ReceiveState.FAILED
        assert "nothing left to send" in (reason or "")
        both.deliver()
        both.decode.abort(1, "failed")
        both.wait_released(1)
        both.decode.close(1)
        both.pull(2, DST)
        written(both, 2)
        assert both.wait_received(2) == (ReceiveState.COMPLETE, None)


def test_what_was_said_before_prefill_had_the_pull_does_not_count() -> None:
    with pair() as both:
        both.introduce()
        pull = both.decode.pull(1, [PREFILL], np.array(DST, np.int32), 0, 0, 1)
        both.asks()
        both.asks()
        both.prefill.on_pull(wire(pull))
        for _ in range(3):
            both.asks()
        written(both, 1)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)


def test_a_reason_that_was_sent_to_an_earlier_slot_is_told_again() -> None:
    with pair() as both:
        both.introduce()
        started(both)
        both.prefill.fail(1, "no memory")
        both.to_decode.clear()
        both.decode._begin_again(both.decode._rooms[1])
        both.deliver()
        both.to_decode.clear()
        both.asks()
        assert both.decode.poll(1) == (ReceiveState.FAILED, "no memory")


def test_a_silent_decode_is_introduced_anew_as_often_as_it_takes() -> None:
    """Where NICs must know each other, a Welcome that is lost leaves nobody to write to."""
    with pair(both_ways=True) as both:
        both.introduce()
        for room in (1, 2):
            both.pull(room, DST)
            both.to_decode.clear()  # a Welcome, the second time
            both.prefill.lost(DECODE, Loss.SILENT)
            both.to_decode.clear()
            both.asks()
            assert both.decode.poll(room)[0] is ReceiveState.FAILED
            both.end(room)
        both.pull(3, DST)
        both.deliver()
        written(both, 3)
        assert both.wait_received(3) == (ReceiveState.COMPLETE, None)


def test_a_prefill_whose_answers_do_not_arrive_is_named_with_where_it_must_connect_to() -> None:
    with pair() as both:
        both.decode.hello(PREFILL)
        both.pull(1, DST)
        for _ in range(15):
            assert both.decode.poll(1) == (ReceiveState.COUNTING, None)
            both.pass_time(2)
        state, reason = both.decode.poll(1)
        assert state is ReceiveState.FAILED
        assert f"{PREFILL} takes our messages" in (reason or "")
        assert f"connect to {DECODE}" in (reason or "")


def test_as_long_as_prefill_has_something_to_send_it_answers_nothing() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        for step in range(3):
            if step == 1:
                both.prefill.open(1)
            elif step == 2:
                both.prefill.send(1, SRC[:2], 0)
            both.pass_time(2)
            assert [type(each) for each in both.to_prefill] == [Counting]
            both.asks()
        both.prefill.send(1, SRC[2:], 2)
        both.prefill.finish(1, 5)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)


def test_what_prefill_has_written_is_complete_however_late_decode_looks() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        written(both, 1)
        assert both.wait_sent(1) == (SendState.DONE, None)
        units = len(SRC) * len(PAGE_BYTES) + len(AUX_BYTES)
        while both.target.engine.stats().units_counted < units:  # its writer may know before it has counted
            pass
        both.prefill.close(1)
        for _ in range(4):
            both.asks()
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)


def test_a_pull_that_waits_for_the_earlier_user_of_its_room_is_not_over() -> None:
    with pair() as both:
        served(both, 1)
        both.pull(1, DST)
        written(both, 1)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)
        both.decode.close(1)
        both.pull(1, DST)  # prefill's scheduler has not looked yet
        for _ in range(4):
            both.asks()
        assert both.decode.poll(1) == (ReceiveState.COUNTING, None)
        both.prefill.close(1)
        written(both, 1)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)


def test_the_word_of_one_writer_of_two_or_about_an_earlier_pull_ends_nothing() -> None:
    with pair() as both:
        both.introduce()
        other = Endpoint("prefill", 2)
        both.decode.hello(other)
        pull = both.decode.pull(1, [PREFILL, other], np.array(DST, np.int32), 0, 0, 1)
        name = Ended(1, pull.slot, pull.generation, "")
        earlier = name._replace(generation=name.generation + 1)
        for _ in range(4):
            for said in (name, earlier._replace(reason="failed")):
                both.decode.on_over(Over(PREFILL, both.incarnation, (said,)))
            both.decode.on_over(Over(other, 5, (name,)))  # who has never answered us
            both.pass_time(2)
        assert both.decode.poll(1) == (ReceiveState.COUNTING, None)


def test_a_welcome_that_was_lost_is_asked_for_again() -> None:
    with pair() as both:
        both.prefill.on_hello(wire(both.decode.hello(PREFILL)))
        both.to_decode.clear()
        both.pull(1, DST)
        both.asks()
        written(both, 1)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)


def test_a_reason_of_any_length_is_told_and_keeps_back_no_other() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        both.pull(2, [20, 21])
        both.prefill.fail(1, "a client's schema: " + "x" * (2 * MAX_REASON))
        both.prefill.fail(2, "short")
        both.to_decode.clear()
        both.asks()
        state, reason = both.decode.poll(1)
        assert state is ReceiveState.FAILED
        assert (reason or "").startswith("a client's schema: xxx")
        assert both.decode.poll(2) == (ReceiveState.FAILED, "short")
