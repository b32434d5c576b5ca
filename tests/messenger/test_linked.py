"""Messengers over real links, sealed: a peer that dies or freezes costs its own requests, and no other's."""

import itertools

from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .linked import Away, DecodeRank, PrefillRank, away, here, wait_for

ROOMS = itertools.count(1)
PAGES = [3, 4, 9]


def transfer(decode: DecodeRank, prefill: Away) -> None:
    """A request from its Pull to its last byte."""
    room = next(ROOMS)
    decode.pull(prefill.endpoint, room, PAGES)
    prefill.ask("open", room)
    prefill.ask("serve", room, PAGES)
    assert decode.end(room) == (ReceiveState.COMPLETE, None)
    assert prefill.ask("end", room) == (SendState.DONE, None)
    for page in PAGES:
        assert decode.page(0, page) == prefill.ask("page", 0, page)


def test_a_killed_prefill_fails_its_requests_and_its_successor_serves() -> None:
    with here(DecodeRank) as decode, away(PrefillRank) as other:
        decode.meet(other.endpoint)
        with away(PrefillRank) as prefill:
            decode.meet(prefill.endpoint)
            transfer(decode, prefill)
            room = next(ROOMS)
            decode.pull(prefill.endpoint, room, PAGES)
            prefill.ask("open", room)
            prefill.kill()
            state, reason = decode.end(room)
            assert state is ReceiveState.FAILED
            assert reason is not None
            assert str(prefill.endpoint) in reason
            assert Loss.DEAD.value in reason
            transfer(decode, other)
        with away(PrefillRank) as successor:
            decode.meet(successor.endpoint)
            transfer(decode, successor)
        wait_for(lambda: len(decode.lost) == 2)
        assert decode.lost == [(prefill.endpoint, Loss.DEAD), (successor.endpoint, Loss.DEAD)]


def test_a_frozen_prefill_fails_its_requests_and_serves_again_when_it_goes_on() -> None:
    with here(DecodeRank) as decode, away(PrefillRank) as prefill, away(PrefillRank) as other:
        for each in (prefill, other):
            decode.meet(each.endpoint)
            transfer(decode, each)
        room = next(ROOMS)
        with prefill.frozen():
            decode.pull(prefill.endpoint, room, PAGES)
            transfer(decode, other)
            state, reason = decode.end(room)
            assert state is ReceiveState.FAILED
            assert reason is not None
            assert Loss.SILENT.value in reason
            transfer(decode, other)
        decode.meet(prefill.endpoint)
        transfer(decode, prefill)
        assert decode.lost == [(prefill.endpoint, Loss.SILENT)]


def test_a_decode_that_was_frozen_for_long_learns_that_prefill_has_given_it_up() -> None:
    with here(PrefillRank) as prefill, away(DecodeRank) as decode:
        room = next(ROOMS)
        decode.ask("meet", prefill.endpoint)
        decode.ask("pull", prefill.endpoint, room, PAGES)
        prefill.open(room)
        with decode.frozen():
            wait_for(lambda: len(prefill.lost) == 2)  # what it says of the room goes with the next connection
            assert prefill.lost == [(decode.endpoint, Loss.SILENT)] * 2
            state, _reason = prefill.end(room)
            assert state is SendState.FAILED
            prefill.messenger.close(room)
        state, _reason = decode.ask("end", room)
        assert state is ReceiveState.FAILED


def test_a_killed_decode_fails_its_requests_on_prefill_and_the_next_decode_is_served() -> None:
    with away(PrefillRank) as prefill:
        room = next(ROOMS)
        with away(DecodeRank) as decode:
            decode.ask("meet", prefill.endpoint)
            decode.ask("pull", prefill.endpoint, room, PAGES)
            prefill.ask("open", room)
            decode.kill()
            state, reason = prefill.ask("end", room)
            assert state is SendState.FAILED
            assert str(decode.endpoint) in reason
        with here(DecodeRank) as successor:
            successor.meet(prefill.endpoint)
            transfer(successor, prefill)
