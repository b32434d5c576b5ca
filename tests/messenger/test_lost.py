"""A peer is lost, dead or silent: what fails, what is given back, and when pages may have another owner."""

import logging
import time

import msgspec
import numpy as np
import pytest

from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import Again, Pull, Quiet, Welcome
from sglang_pd_fabric.messenger.states import PrefillGoneError, ReceiveState, SendState

from .apart import PAGES, Apart, apart
from .pair import DECODE, DST, PREFILL, SRC, Pair, pair, quiet, served, started, wire, written

SOON_S = 1.0  # by then a decode that goes on has read what its socket holds


@pytest.mark.parametrize("how", Loss)
def test_a_lost_prefill_fails_its_rooms_at_once_and_has_to_be_met_again(how: Loss) -> None:
    with pair() as both:
        both.introduce()
        before = both.decode.held()
        started(both)
        both.decode.lost(PREFILL, how)
        assert both.decode.poll(1) == (ReceiveState.FAILED, f"lost prefill {PREFILL}: {how.value}")
        with pytest.raises(PrefillGoneError, match="is gone"):
            both.decode.pull(2, [PREFILL], np.array(DST, np.int32), 0, 0, 1)
        both.end(1)
        served(both, 2)
        assert both.decode.held() == before


def test_pages_of_a_dead_writer_are_held_while_the_kernel_may_still_hold_its_bytes() -> None:
    with pair("tcp") as both:
        both.introduce()
        started(both)
        both.decode.lost(PREFILL, Loss.DEAD)
        both.decode.abort(1, "lost")
        both.pass_time(4)
        assert not both.decode.released(1)
        both.pass_time(2)
        assert both.decode.released(1)
        both.decode.close(1)
        assert both.decode.held().rooms == 0


def test_pages_of_a_silent_writer_are_held_until_it_says_that_it_is_quiet() -> None:
    with pair() as both:
        both.introduce()
        started(both)
        both.decode.lost(PREFILL, Loss.SILENT)
        both.decode.abort(1, "lost")
        both.pass_time(100)
        assert not both.decode.released(1)
        both.wait_released(1)  # it thaws, and hears of the abort


def test_pages_of_a_silent_writer_are_free_when_it_turns_out_to_be_dead() -> None:
    with pair() as both:
        both.introduce()
        started(both)
        both.decode.lost(PREFILL, Loss.SILENT)
        both.decode.abort(1, "lost")
        both.decode.hello(PREFILL)  # the next request
        both.decode.lost(PREFILL, Loss.DEAD)
        both.pass_time(6)
        assert both.decode.released(1)


def test_pages_of_a_silent_writer_are_free_when_another_process_answers_in_its_place() -> None:
    with pair() as both:
        both.introduce()
        started(both)
        both.decode.lost(PREFILL, Loss.SILENT)
        both.decode.abort(1, "lost")
        both.prefill.on_hello(wire(both.decode.hello(PREFILL)))
        (welcome,) = (each for each in both.to_decode if isinstance(each, Welcome))
        both.decode.on_welcome(msgspec.structs.replace(welcome, incarnation=77))
        both.pass_time(6)
        assert both.decode.released(1)


def test_pages_of_a_silent_writer_are_held_for_longer_than_it_may_stand_still_and_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pair(stall=300.0) as both, caplog.at_level(logging.ERROR):
        both.introduce()
        started(both)
        both.decode.lost(PREFILL, Loss.SILENT)
        both.decode.abort(1, "lost")
        both.pass_time(250)
        assert not both.decode.released(1)
        assert not caplog.records
        both.pass_time(60)
        assert both.decode.released(1)
        assert "nobody knows" in caplog.text


def test_credits_come_back_from_the_dead_and_stay_with_the_silent() -> None:
    with pair() as both:
        free = both.decode.held().credits_free
        both.introduce()
        granted = free - both.decode.held().credits_free
        assert granted
        both.decode.lost(PREFILL, Loss.SILENT)
        assert both.decode.held().credits_free == free - granted
        both.introduce()
        assert both.decode.held().credits_free == free - granted
        both.decode.lost(PREFILL, Loss.DEAD)
        assert both.decode.held().credits_free == free
        both.introduce()
        both.decode.lost(PREFILL, Loss.SILENT)
        both.pass_time(121)
        assert both.decode.held().credits_free == free


@pytest.mark.parametrize("how", Loss)
def test_a_lost_decode_ends_its_rooms_and_everything_is_given_back(how: Loss) -> None:
    with pair() as both:
        both.introduce()
        started(both)
        both.prefill.plan(1, SRC[2:], 2, forward=9)  # never runs
        assert both.prefill.lost(DECODE, how) == [1]
        assert both.prefill.poll(1) == (SendState.FAILED, f"lost decode {DECODE}: {how.value}")
        both.prefill.close(1)
        while both.prefill.held().rooms:
            both.prefill.sweep()
        assert quiet(both.prefill, 1)
        assert both.prefill.held().peers == (how is Loss.SILENT)


def test_a_silent_decode_that_comes_back_is_served_again_without_a_new_introduction() -> None:
    with pair() as both:
        both.introduce()
        started(both)
        both.prefill.lost(DECODE, Loss.SILENT)
        both.deliver()
        assert both.decode.poll(1)[0] is ReceiveState.FAILED
        both.end(1)
        assert both.pull(2, DST) is SendState.READY
        written(both, 2)
        assert both.wait_received(2)[0] is ReceiveState.COMPLETE


def test_a_prefill_that_has_forgotten_a_decode_still_tells_it_when_it_is_quiet() -> None:
    with pair() as both:
        both.introduce()
        started(both)
        both.prefill.lost(DECODE, Loss.DEAD)
        both.to_decode.clear()
        both.decode.abort(1, "aborted")
        both.wait_released(1)


def test_a_decode_restarted_twice_leaves_nothing_of_the_others_behind() -> None:
    with pair() as both:
        both.introduce()
        for incarnation in (2, 3):
            started(both, incarnation)
            hello = both.decode.hello(PREFILL)
            both.prefill.on_hello(msgspec.structs.replace(hello, incarnation=incarnation))
            state, reason = both.prefill.poll(incarnation)
            assert (state, reason) == (SendState.FAILED, "the decode that asked for it was restarted")
            both.prefill.close(incarnation)
            both.decode._incarnation = incarnation
        while both.prefill.held().rooms:
            both.prefill.sweep()
        assert both.prefill.held().peers == 1


@pytest.mark.parametrize("provider", ["tcp", "mapped"])
def test_a_decode_that_is_killed_gives_everything_back(provider: str) -> None:
    with apart(provider) as both:
        both.pull(1, list(range(PAGES)))
        both.prefill.plan(1, np.arange(PAGES), 0, forward=1)
        both.engine.progress.store(1, 1)
        both.kill()
        assert both.prefill.lost(DECODE, Loss.DEAD) == [1]
        assert both.prefill.poll(1)[0] is SendState.FAILED
        both.prefill.close(1)
        while both.prefill.held().rooms:
            both.prefill.sweep()
        assert both.prefill.held().peers == 0


def test_a_prefill_that_stood_still_posts_nothing_that_it_was_asked_for_before() -> None:
    """Between two chunks: the engine has nothing unfinished, and the next chunk comes at once."""
    with pair() as both:
        both.introduce()
        started(both)
        both.pull(2, DST)
        both.prefill.open(2)
        both.prefill.sweep()
        while not quiet_transfers(both):
            both.prefill.sweep()
        posted = both.source.engine.stats().writes_posted
        both.prefill._rooms._awake -= both.source.engine.stall + 1  # as after SIGCONT
        both.prefill.send(1, SRC[2:], 2)
        both.prefill._rooms._settled += 3600
        both.prefill.send(2, SRC, 0)
        for room in (1, 2):
            state, reason = both.prefill.poll(room)
            assert state is SendState.FAILED
            assert "stood still" in (reason or "")
        assert both.source.engine.stats().writes_posted == posted
        both.deliver()
        for room in (1, 2):
            assert both.decode.poll(room)[0] is ReceiveState.FAILED
            both.end(room)
        assert both.pull(3, DST) is SendState.ASKED  # who knows whether decode still wants it
        both.prefill._rooms._settled = 1e-9
        assert both.prefill.sweep() == [3]
        written(both, 3)
        assert both.wait_received(3) == (ReceiveState.COMPLETE, None)


@pytest.mark.parametrize("meets", [False, True])
def test_a_prefill_that_stood_still_sends_nothing_once_more(meets: bool) -> None:
    """Decode had lost a NIC and asked for that before; it has given the pages away, and may be here again."""
    with pair() as both:
        both.introduce()
        pull = asked_for(both, 1)
        written(both, 1)
        both.prefill.sweep()
        while not quiet_transfers(both):
            both.prefill.sweep()
        posted = both.source.engine.stats().writes_posted
        both.prefill._rooms._awake -= 200  # as after SIGCONT
        if meets:
            both.prefill.on_hello(wire(both.decode.hello(PREFILL)))
            both.prefill.on_pull(msgspec.structs.replace(pull, room=2, slot=5))
        both.prefill.on_again(Again(pull.incarnation, 1, pull.slot, pull.generation, 9, 1))
        assert both.prefill.poll(1)[0] is SendState.FAILED
        assert both.source.engine.stats().writes_posted == posted


@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_a_decode_that_stood_still_takes_nothing_for_complete_that_came_too_late(provider: str) -> None:
    """Prefill has given its pages to another request. The word that the room has failed comes last."""
    pages = [3, 4, 5]
    with apart(provider, stall=3.0) as both:
        served_apart(both, 1, pages)
        both.pull(2, pages)
        with both.frozen():
            both.prefill.send(2, np.array(pages, np.int32), 0)
            both.prefill.finish(2, 5)
            while (state := both.prefill.poll(2)[0]) is not SendState.FAILED:
                assert state is SendState.FLUSHING
            meant = give_away(both, pages)
            late, both._to_decode[:] = list(both._to_decode), []
        if not all_lay_in_its_socket(both, provider, pages, meant):
            for frames in late:
                both.ask("deliver", frames)
            assert both.wait_received(2)[0] == "failed"
        both.ask("abort", 2)
        both.wait_released(2)
        served_apart(both, 3, pages)


def test_a_pull_that_waited_for_its_room_while_prefill_stood_still_writes_nothing() -> None:
    """Its decode has given it up, and its pages away."""
    with pair() as both:
        both.introduce()
        both.prefill.sweep()
        both.pull(1, DST)
        written(both, 1)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)
        assert both.wait_sent(1) == (SendState.DONE, None)
        both.decode.close(1)
        both.pull(1, [20, 21, 22, 23, 24])
        both.decode.lost(PREFILL, Loss.SILENT)
        both.decode.abort(1, "lost")
        both.pass_time(121)
        assert both.decode.released(1)
        both.to_prefill.clear()
        both.prefill._rooms._awake -= 200  # as after SIGCONT
        both.prefill.sweep()
        both.prefill.close(1)
        assert both.prefill.open(1)[0] is SendState.ASKED
        both.prefill._rooms._settled = 1e-9
        assert both.prefill.sweep() == []


@pytest.mark.parametrize("provider", ["shm", "tcp"])
def test_a_decode_that_was_given_up_before_the_deadline_takes_nothing_for_complete(
    provider: str,
) -> None:
    """Prefill's links have given it up: sooner than the engine would have, and its pages are another's."""
    pages = [3, 4, 5]
    with apart(provider, absence=3.0) as both:
        served_apart(both, 1, pages)
        both.pull(2, pages)
        with both.frozen():
            both.prefill.send(2, np.array(pages, np.int32), 0)
            both.prefill.finish(2, 5)
            assert 2 in both.prefill.lost(DECODE, Loss.SILENT)
            while both.prefill.poll(2)[0] is not SendState.FAILED:
                both.prefill.sweep()
            meant = give_away(both, pages)
            both._to_decode.clear()
            time.sleep(3.5)  # the standstill itself: more than the silence that prefill allows
        all_lay_in_its_socket(both, provider, pages, meant)
        both.ask("abort", 2)
        both.wait_released(2)
        both.prefill.close(2)
        served_apart(both, 3, pages)


def give_away(both: Apart, pages: list[int]) -> list[np.ndarray]:
    """Prefill's pages are another request's now. Returns what they held."""
    meant = [buffer[pages].copy() for buffer in both.kv]
    for buffer in both.kv:
        buffer[:] = 0
    return meant


def all_lay_in_its_socket(both: Apart, provider: str, pages: list[int], meant: list[np.ndarray]) -> bool:
    """Whether room 2 is complete on a decode that went on: only over tcp, and with what was meant for it."""
    if provider == "shm":
        assert both.wait_received(2)[0] == "failed"
        return False
    end = time.monotonic() + SOON_S
    while (state := both.ask("poll", 2)[0]) == "counting" and time.monotonic() < end:
        pass
    if state != "complete":
        return False
    assert all(np.array_equal(both.ask("pages", at, pages), right) for at, right in enumerate(meant))
    return True


def served_apart(both: Apart, room: int, pages: list[int]) -> None:
    both.pull(room, pages)
    both.prefill.send(room, np.array(pages, np.int32), 0)
    both.prefill.finish(room, 5)
    assert both.wait_received(room) == ("complete", None)
    while both.prefill.poll(room)[0] is SendState.FLUSHING:
        pass
    for buffer, source in enumerate(both.kv):
        assert np.array_equal(both.ask("pages", buffer, pages), source[pages])


def asked_for(both: Pair, room: int) -> Pull:
    pull = both.decode.pull(room, [PREFILL], np.array(DST, np.int32), 0, 0, 1)
    both.prefill.on_pull(wire(pull))
    return pull


def quiet_transfers(both: Pair) -> bool:
    return all(room.quiet for room in both.prefill._rooms.all())


def test_a_confirmation_of_a_process_that_was_replaced_still_counts_for_its_own_pull() -> None:
    """SIGSTOP, a new request, SIGCONT: the first one's writes are its own to confirm."""
    with pair() as both:
        both.introduce()
        pull = both.decode.pull(1, [PREFILL], np.array(DST, np.int32), 0, 0, 1)
        both.decode.lost(PREFILL, Loss.SILENT)
        both.decode.abort(1, "lost")
        both.introduce()
        both.decode.on_quiet(Quiet(PREFILL, both.incarnation, 1, pull.slot, pull.generation))
        assert both.decode.released(1)
