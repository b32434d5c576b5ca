"""Aborts: whose pages may be given to whom, and when. The test decides when a message arrives."""

import msgspec
import numpy as np
import pytest

from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import Abort, Failure, Pull, Quiet, Welcome
from sglang_pd_fabric.messenger.states import ReceiveState, RoomInUseError, SendState

from .pair import DECODE, DST, PREFILL, SRC, Pair, pair, quiet, wire


def asked(both: Pair, room: int, pages: list[int] = DST) -> Pull:
    """A pull that has not arrived yet."""
    return both.decode.pull(room, [PREFILL], np.array(pages, np.int32), 0, 0, 1)


def started(both: Pair, room: int = 1) -> Pull:
    """A room with its first chunk handed over."""
    pull = asked(both, room)
    both.prefill.on_pull(pull)
    both.prefill.open(room)
    both.prefill.send(room, SRC[:2], 0)
    return pull


def whole(both: Pair, room: int) -> None:
    """Everything of a request that was pulled, and that it arrives."""
    both.prefill.open(room)
    both.prefill.send(room, SRC, 0)
    both.prefill.finish(room, 5)
    assert both.wait_received(room) == (ReceiveState.COMPLETE, None)
    assert both.wait_sent(room) == (SendState.DONE, None)
    for here, there in zip(both.source.kv, both.target.kv, strict=True):
        assert (there[DST] == here[SRC]).all()


def close(both: Pair, room: int) -> None:
    both.prefill.close(room)
    both.decode.close(room)


def slots_are_all_free(both: Pair) -> bool:
    return both.decode._slots.free == both.target.engine.slot_count


def test_pages_are_held_until_the_writer_is_quiet_and_its_slot_too() -> None:
    with pair() as both:
        both.introduce()
        started(both)
        both.decode.abort(1, "aborted")
        (abort,) = both.to_prefill
        assert isinstance(abort, Abort)
        assert not both.decode.released(1)
        assert both.decode.held().pages_held == len(DST)
        with pytest.raises(RoomInUseError, match="may still be written to"):
            asked(both, 1)
        both.wait_released(1)
        assert quiet(both.prefill, 1)
        assert both.prefill.poll(1) == (SendState.FAILED, "aborted by decode")
        close(both, 1)
        assert both.decode.held().pages_held == both.decode.held().rooms == 0
        assert slots_are_all_free(both)
        both.pull(1, DST)
        whole(both, 1)


@pytest.mark.parametrize(
    "phase", ["asked", "opened", "planned", "between", "flushing", "done", "failed", "closed"]
)
def test_an_abort_in_any_phase_is_answered_and_leaves_nothing(phase: str) -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        if phase != "asked":
            both.prefill.open(1)
        if phase == "planned":
            both.prefill.plan(1, SRC, 0, forward=4)  # no layer has run
        elif phase == "between":
            both.prefill.send(1, SRC[:2], 0)
        elif phase == "failed":
            both.prefill.send(1, SRC[:2], 0)
            both.prefill.fail(1, "out of memory")
        elif phase in ("flushing", "done", "closed"):
            both.prefill.send(1, SRC, 0)
            both.prefill.finish(1, 5)
        if phase == "done":
            assert both.wait_sent(1)[0] is SendState.DONE
        if phase == "closed":
            both.prefill.close(1)
        both.decode.abort(1, "aborted")
        both.wait_released(1)
        posted = both.source.engine.stats().writes_posted
        both.engine_passes()
        both.prefill.send(1, SRC, 0)
        both.prefill.finish(1, 5)
        assert both.source.engine.stats().writes_posted == posted
        assert both.decode.poll(1)[0] is ReceiveState.QUARANTINED
        close(both, 1)
        assert slots_are_all_free(both)


def test_an_abort_is_answered_again_and_an_answer_that_was_lost_is_asked_for_again() -> None:
    with pair() as both:
        both.introduce()
        started(both)
        both.decode.abort(1, "aborted")
        abort = both.to_prefill.pop()
        assert isinstance(abort, Abort)
        while not any(isinstance(message, Quiet) for message in both.to_decode):
            both.prefill.on_abort(abort)
        both.to_decode.clear()
        assert not both.decode.released(1)
        both.pass_time(2)
        both.wait_released(1)


def test_an_abort_for_a_pull_that_never_came_is_answered() -> None:
    with pair() as both:
        both.introduce()
        asked(both, 1)
        both.decode.abort(1, "aborted")
        both.deliver()
        assert both.decode.released(1)


def test_the_abort_of_an_earlier_use_of_a_room_does_not_touch_the_present_one() -> None:
    with pair() as both:
        both.introduce()
        started(both)
        both.decode.abort(1, "aborted")
        late = both.to_prefill[0]
        assert isinstance(late, Abort)
        both.wait_released(1)
        close(both, 1)
        both.pull(1, DST)
        both.prefill.open(1)
        assert both.prefill.on_abort(late) is None
        (answer,) = both.to_decode
        assert isinstance(answer, Quiet)
        both.deliver()
        assert both.decode.poll(1)[0] is ReceiveState.COUNTING
        both.prefill.send(1, SRC, 0)
        both.prefill.finish(1, 5)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE


def test_an_abort_that_overtook_a_pull_holds_however_long_that_waits_for_its_room() -> None:
    """The earlier request with that number is still prefill's when the pull comes, and for minutes more."""
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        both.prefill.open(1)
        both.prefill.fail(1, "out of memory")
        both.deliver()
        both.decode.abort(1, "it has failed")
        both.wait_released(1)
        both.decode.close(1)
        late = asked(both, 1)
        both.decode.abort(1, "aborted")
        both.wait_released(1)
        both.decode.close(1)
        both.prefill.on_pull(wire(late))
        both.prefill._aborts._early.clear()  # as after a minute
        both.prefill.close(1)
        assert both.prefill.open(1) == (SendState.FAILED, "aborted by decode")


def test_a_late_abort_does_not_touch_the_request_that_has_its_slots_generation_again() -> None:
    """With few slots the 127 generations come round within the minute for which an abort is remembered."""
    with pair() as both:
        both.introduce()
        pull = asked(both, 1)
        both.prefill.on_pull(pull)
        whole(both, 1)
        both.prefill.close(1)
        late = Abort(pull.incarnation, PREFILL, DECODE, 1, pull.slot, pull.generation)
        assert both.prefill.on_abort(wire(late)) is None
        both.prefill.on_pull(wire(msgspec.structs.replace(pull, room=2)))
        assert both.prefill.open(2) == (SendState.READY, None)


def test_a_confirmation_of_an_earlier_use_of_a_room_releases_nothing() -> None:
    with pair() as both:
        both.introduce()
        first = started(both)
        both.decode.abort(1, "aborted")
        both.wait_released(1)
        close(both, 1)
        started(both)
        both.decode.abort(1, "aborted")
        both.decode.on_quiet(Quiet(PREFILL, both.incarnation, 1, first.slot, first.generation))
        assert not both.decode.released(1)
        both.wait_released(1)


def test_the_next_use_of_a_room_waits_until_prefill_is_done_with_the_last() -> None:
    """Decode is done with a request a moment before prefill, whose scheduler may be in a forward pass."""
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        whole(both, 1)
        both.decode.close(1)
        both.pull(1, DST)
        assert both.prefill.poll(1) == (SendState.DONE, None)
        both.prefill.close(1)
        assert both.prefill.open(1) == (SendState.READY, None)
        both.prefill.send(1, SRC, 0)
        both.prefill.finish(1, 5)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE


def test_a_next_use_that_is_aborted_while_it_waits_ends_nothing_but_itself() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        whole(both, 1)
        both.decode.close(1)
        both.pull(1, DST)
        both.decode.abort(1, "aborted")
        both.deliver()
        assert both.decode.released(1)
        assert both.prefill.poll(1) == (SendState.DONE, None)
        close(both, 1)
        assert both.prefill.open(1) == (SendState.FAILED, "aborted by decode")


@pytest.mark.parametrize("handed_over", [False, True])
def test_two_live_requests_with_one_room_never_answer_each_other(handed_over: bool) -> None:
    """Nobody can tell which of the two decode has pulled, until everything of the first is handed over."""
    with pair() as both:
        both.introduce()
        started(both)
        if handed_over:
            both.prefill.send(1, SRC[2:], 2)
            both.prefill.finish(1, 5)
        with pytest.raises(RoomInUseError, match="in use by another request on prefill"):
            both.prefill.open(1)
        both.prefill.send(1, SRC[2:], 2)
        state, reason = both.wait_received(1)
        assert state is (ReceiveState.COMPLETE if handed_over else ReceiveState.FAILED)
        assert handed_over or "in use by another request on prefill" in (reason or "")
        both.end(1)
        # What decode asks for now can only be the second one, which prefill has refused.
        assert both.pull(1, DST) is SendState.FAILED
        assert both.wait_received(1)[0] is ReceiveState.FAILED
        both.end(1)
        both.prefill.open(1)
        both.pull(1, DST)
        both.prefill.send(1, SRC, 0)
        both.prefill.finish(1, 5)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE


def test_a_pull_that_comes_twice_is_one_pull() -> None:
    with pair() as both:
        both.introduce()
        pull = asked(both, 1)
        both.prefill.on_pull(pull)
        assert both.prefill.on_pull(pull) is SendState.READY
        whole(both, 1)
        close(both, 1)
        assert both.prefill.open(1) == (SendState.ASKED, None)


def test_what_an_earlier_process_says_is_never_taken_for_its_successors() -> None:
    with pair() as both:
        both.prefill.on_hello(wire(both.decode.hello(PREFILL)))
        old = both.to_decode.pop()
        assert isinstance(old, Welcome)
        both.decode.on_welcome(msgspec.structs.replace(old, incarnation=5))
        pull = asked(both, 1)
        both.introduce()  # another process answers there now: this is the one that is real
        state, reason = both.decode.poll(1)
        assert (state, reason) == (
            ReceiveState.FAILED,
            f"lost prefill {PREFILL}: another process answers in its place",
        )
        both.decode.abort(1, "aborted")
        both.decode.on_quiet(Quiet(PREFILL, both.incarnation, 1, pull.slot, pull.generation))
        assert not both.decode.released(1)  # it speaks for itself only
        both.decode.on_welcome(msgspec.structs.replace(old, incarnation=5))
        both.pass_time(6)
        assert both.decode.released(1)
        both.decode.close(1)
        both.pull(2, DST)
        both.decode.on_failure(Failure(PREFILL, 5, 2, 1, 1, "of the old one"))
        whole(both, 2)


def test_rooms_end_and_slots_come_back_in_a_thousand_rounds_of_aborts_at_any_moment() -> None:
    """Once failed, always failed; nothing counts for the next owner; every byte of the last one is right."""
    random = np.random.default_rng(19)
    with pair("shm") as both:
        both.introduce()
        ended = {SendState.DONE: 0, SendState.FAILED: 0}
        for room in range(1, 1001):
            pull, early = asked(both, room), random.random() < 0.1
            steps = random.integers(0, 60)
            if not early:
                both.prefill.on_pull(pull)
            both.prefill.open(room)
            both.prefill.send(room, SRC[:2], 0)
            both.prefill.send(room, SRC[2:], 2)
            both.prefill.finish(room, 5)
            for _ in range(steps):
                both.decode.poll(room)
                both.prefill.poll(room)
            if not early and random.random() < 0.1:
                both.wait_received(room)
                both.wait_sent(room)
            both.decode.abort(room, "aborted")
            if early:
                both.deliver()
                both.prefill.on_pull(pull)
            state = both.decode.poll(room)[0]
            both.wait_released(room)
            seen = both.wait_sent(room)[0]
            for _ in range(3):
                assert both.decode.poll(room)[0] is state
                assert both.prefill.poll(room)[0] is seen
            ended[seen] += 1
            close(both, room)
            both.deliver()
        assert all(ended.values())
        assert slots_are_all_free(both)
        both.pull(2000, DST)
        whole(both, 2000)


def test_a_second_request_that_was_refused_stays_so_when_the_pull_for_it_is_aborted() -> None:
    with pair() as both:
        both.introduce()
        pull = asked(both, 1)
        both.prefill.on_pull(pull)
        both.prefill.open(1)
        with pytest.raises(RoomInUseError):
            both.prefill.open(1)
        late = msgspec.structs.replace(pull, slot=9)
        both.prefill.on_abort(Abort(pull.incarnation, PREFILL, DECODE, 1, late.slot, late.generation))
        both.prefill.on_pull(wire(late))
        both.prefill.close(1)
        assert both.prefill.open(1) == (SendState.ASKED, None)


def test_a_pull_that_leaves_when_its_pages_are_anothers_leaves_without_them() -> None:
    """It waited for the GPU; the connection broke meanwhile, and the word of its abort with it."""
    with pair() as both:
        both.introduce()
        both.prefill.open(1)
        pull = both.decode.pull(1, [PREFILL], np.array(DST, np.int32), 0, 0, 1, later=True)
        both.pass_time(4)
        assert not both.to_prefill, "nobody is asked for what has not left"
        assert both.decode.leaving(pull) == pull
        both.decode.lost(PREFILL, Loss.DEAD)
        both.decode.poll(1)
        both.decode.abort(1, "lost")
        both.pass_time(6)
        assert both.decode.released(1)
        both.to_prefill.clear()
        both.prefill.on_pull(wire(both.decode.leaving(pull)))
        both.prefill.expect(1, len(SRC), 0)
        state, reason = both.prefill.poll(1)
        assert state is SendState.FAILED
        assert "decode asked for 0" in (reason or "")
