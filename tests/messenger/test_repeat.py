"""A path between two NICs breaks in mid-transfer: the room goes again, under a slot that counts from zero."""

from collections.abc import Callable

import numpy as np
import pytest
from sharded import Model, Request, Server

from sglang_pd_fabric.messenger import messages, posting
from sglang_pd_fabric.messenger.messages import NO_SLOT, Again, Failure, Pull, Spoiled
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .apart import PAGES, Apart, apart
from .groups import groups
from .pair import AUX_BYTES, PAGE_BYTES, PREFILL, Pair, pair, quiet, written
from .pair import DST as SOME

MORE_THAN_SOCKETS_HOLD = 20  # writes of 1 MiB, over one connection or two
SRC, DST = np.arange(PAGES, dtype=np.int32), list(reversed(range(PAGES)))


def connect_all_nics(both: Apart) -> None:
    """A connection needs decode, which will stand still."""
    both.pull(2, DST)
    both.prefill.send(2, SRC, 0)
    both.prefill.finish(2, 5)
    assert both.wait_received(2) == ("complete", None)


def break_path(both: Apart, pages: np.ndarray, first: int) -> None:
    """Loses a NIC of prefill with writes of the room under way: decode stands still and takes none."""
    connect_all_nics(both)
    before = both.engine.stats().writes_posted
    with both.frozen():
        both.prefill.send(1, pages, first)
        while both.engine.stats().writes_posted < before + MORE_THAN_SOCKETS_HOLD:
            pass
        both.engine.remove_nic(0)
        while not both.engine.stats().writes_orphaned:
            pass
        both.prefill.sweep()


def complete(both: Apart) -> None:
    assert both.wait_received(1) == ("complete", None)
    while both.prefill.poll(1)[0] is SendState.FLUSHING:
        both.deliver()
    assert both.prefill.poll(1) == (SendState.DONE, None)
    for buffer, source in enumerate(both.kv):
        assert np.array_equal(both.ask("pages", buffer, DST), source[SRC])


def test_a_nic_is_lost_and_the_room_goes_once_more_over_the_other() -> None:
    with apart("tcp", nics=2) as both:
        both.pull(1, DST)
        break_path(both, SRC, 0)
        both.prefill.finish(1, 5)
        complete(both)
        assert not both.failures


def test_what_is_handed_over_while_decode_looks_for_a_slot_goes_with_the_rest() -> None:
    with apart("tcp", nics=2) as both:
        both.pull(1, DST)
        half = PAGES // 2
        break_path(both, SRC[:half], 0)
        assert both.prefill.plan(1, SRC[half:], half, forward=3)
        both.engine.progress.store(3, 1)
        both.prefill.finish(1, 5)
        assert both.prefill.poll(1)[0] is SendState.FLUSHING
        both.engine.progress.store(4, 0)
        complete(both)


def test_a_room_that_waits_for_a_slot_can_be_aborted() -> None:
    with apart("tcp", nics=2) as both:
        both.pull(1, DST)
        break_path(both, SRC, 0)
        both.prefill.fail(1, "aborted by decode")
        assert both.wait_received(1)[0] == "failed"
        while not quiet(both.prefill, 1):
            both.prefill.sweep()


def test_a_decode_that_never_says_where_to_fails_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    with apart("tcp", nics=2) as both:
        both.pull(1, DST)
        break_path(both, SRC, 0)
        monkeypatch.setattr(posting, "AGAIN_SECONDS", 0.0)
        both.prefill.sweep()
        state, reason = both.prefill.poll(1)
        assert state is SendState.FAILED
        assert "could not be sent again in time" in (reason or "")


def test_without_another_nic_the_room_fails_with_the_reason() -> None:
    with apart("tcp") as both:
        both.pull(1, DST)
        break_path(both, SRC, 0)
        state, reason = both.prefill.poll(1)
        assert state is SendState.FAILED
        assert "Network is down" in (reason or "")


def started(both: Pair) -> Pull:
    both.introduce()
    pull = both.decode.pull(1, [PREFILL], np.array([3, 4], np.int32), 0, 0, 1)
    both.prefill.on_pull(pull)
    both.prefill.open(1)
    both.prefill.send(1, np.array([7, 8]), 0)
    return pull


def test_decode_counts_from_nothing_and_old_news_changes_nothing() -> None:
    with pair() as both:
        pull = started(both)
        spoiled = Spoiled(PREFILL, both.incarnation, 1, pull.slot, pull.generation)
        both.decode.on_spoiled(spoiled)
        both.decode.poll(1)
        (again,) = both.to_prefill
        assert isinstance(again, Again)
        assert again.slot != pull.slot
        both.decode.on_spoiled(spoiled)
        both.decode.poll(1)
        assert len(both.to_prefill) == 1
        both.deliver()
        both.prefill.finish(1, 5)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)
        assert both.wait_sent(1)[0] is SendState.DONE
        both.decode.close(1)
        # Both slots are free again: as many rooms as there are slots find one.
        for room in range(2, 2 + both.target.engine.slot_count):
            both.decode.pull(room, [PREFILL], np.array([3], np.int32), 0, 0, 1)


def test_a_decode_that_is_complete_needs_nothing_more() -> None:
    with pair() as both:
        pull = started(both)
        both.prefill.finish(1, 5)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE
        both.decode.on_spoiled(Spoiled(PREFILL, both.incarnation, 1, pull.slot, pull.generation))
        assert both.to_prefill == [Again(1, 1, pull.slot, pull.generation, 0, NO_SLOT)]
        both.deliver()
        assert both.wait_sent(1)[0] is SendState.DONE


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (lambda both: both.prefill.close(1), "given the pages back"),
        (lambda both: both.prefill.fail(1, "out of memory"), "out of memory"),
    ],
)
def test_decode_is_told_why_when_prefill_cannot_send_again(end: Callable[[Pair], None], reason: str) -> None:
    with pair() as both:
        pull = started(both)
        end(both)
        both.to_decode.clear()
        both.prefill.on_again(Again(1, 1, pull.slot, pull.generation, 9, 1))
        (failure,) = both.to_decode
        assert isinstance(failure, Failure)
        assert (failure.slot, failure.generation) == (9, 1)
        assert reason in failure.reason


def test_a_room_that_decode_has_given_up_fails() -> None:
    with pair() as both:
        pull = started(both)
        both.prefill.on_again(Again(1, 1, pull.slot, pull.generation, 0, NO_SLOT))
        assert both.prefill.poll(1) == (SendState.FAILED, "decode has ended the request")


@pytest.mark.parametrize("provider", ["tcp", "shm"])
def test_a_room_is_not_done_while_what_goes_once_more_is_on_its_way(provider: str) -> None:
    """The scheduler looks when the old writes have ended, and by that sets the new ones off."""
    with apart(provider) as both:
        connect_all_nics(both)
        both.pull(1, DST)
        pull = both.prefill._rooms.get(1).pulls[1]
        spoiled = Spoiled(PREFILL, both.prefill.incarnation, 1, pull.slot, pull.generation)
        both.ask("deliver", messages.encode(spoiled))
        both.ask("poll", 1)
        (again,) = map(messages.decode, both.ask("take_sent"))
        before = both.engine.stats().writes_posted
        with both.frozen():
            both.prefill.send(1, SRC, 0)
            both.prefill.finish(1, 5)
            while both.engine.stats().writes_posted == before:
                pass
            both.prefill.on_again(again)
            assert both.prefill._rooms.get(1).waiting
        while not both.prefill._rooms.get(1).quiet:
            pass
        with both.frozen():
            assert both.prefill.poll(1) == (SendState.FLUSHING, None)
            assert not both.prefill._rooms.get(1).quiet
        complete(both)


def test_a_room_that_is_complete_when_decode_loses_a_nic_is_complete() -> None:
    """Prefill has given its pages back: it could not send them once more."""
    with pair(nics=(1, 2)) as both:
        both.introduce()
        both.pull(1, SOME)
        assert both.decode.poll(1)[0] is ReceiveState.COUNTING
        written(both, 1)
        assert both.wait_sent(1) == (SendState.DONE, None)
        units = len(SOME) * len(PAGE_BYTES) + len(AUX_BYTES)
        while both.target.engine.stats().units_counted < units:
            pass
        both.target.engine.remove_nic(1)
        both.decode.poll(1)
        both.deliver()
        assert both.decode.poll(1) == (ReceiveState.COMPLETE, None)


def test_each_of_many_decode_ranks_may_ask_for_a_room_once_more() -> None:
    """One lost NIC of a prefill rank breaks the paths to all of them."""
    request = Request(1, 0, 0, (1, 2), (3, 4))
    with groups(Model("mla", 1, (3,)), Server(1, (2,)), Server(16, (2,)), request) as world:
        world.pull(request)
        world.send(request)
        prefill = world.prefills[0].messenger
        room = prefill._rooms.get(1)
        assert room is not None
        with prefill._lock:
            assert all(prefill._rooms._poster.ask_again(room, each) for each in list(room.transfers))
        world.assert_right(request, world.decodes)  # some may have been complete before they heard of it
