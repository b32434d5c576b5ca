"""The messenger over real engines: what arrives, what is counted, who is told what."""

import msgspec
import numpy as np
import pytest

from sglang_pd_fabric.fabric.mapped import Share
from sglang_pd_fabric.messenger.messages import Endpoint, Failure, Pull, Shared, Welcome
from sglang_pd_fabric.messenger.states import (
    FirstToken,
    IllegalTransitionError,
    ReceiveState,
    RoomInUseError,
    SendState,
    transition,
)

from .pair import AUX_BYTES, DECODE, DST, LAYOUT, PAGE_BYTES, PREFILL, SRC, Pair, pair, quiet, wire


def send_all(both: Pair, room: int, src: np.ndarray = SRC, aux_row: int = 5) -> None:
    both.prefill.open(room)
    both.prefill.expect(room, len(src))
    both.prefill.send(room, src[:2], 0)
    both.prefill.send(room, src[2:], 2)
    both.prefill.finish(room, aux_row)


def assert_arrived(both: Pair, src: np.ndarray, dst: list[int], aux: tuple[int, int]) -> None:
    for here, there in zip(both.source.kv, both.target.kv, strict=True):
        assert (there[dst] == here[src]).all()
        untouched = [page for page in range(len(there)) if page not in dst]
        assert not there[untouched].any()
    for here, there in zip(both.source.aux, both.target.aux, strict=True):
        assert (there[aux[1]] == here[aux[0]]).all()


@pytest.mark.parametrize("provider", ["tcp", "shm", "mapped"])
def test_pages_and_the_metadata_row_arrive_when_the_count_is_full(provider: str) -> None:
    with pair(provider) as both:
        both.introduce()
        assert both.pull(1, DST, aux_row=2) is SendState.READY
        send_all(both, 1)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)
        assert_arrived(both, SRC, DST, (5, 2))
        assert both.wait_sent(1) == (SendState.DONE, None)
        sent = both.prefill.sent(1)
        assert sent.nbytes == len(SRC) * sum(PAGE_BYTES) + sum(AUX_BYTES)
        assert sent.units == len(SRC) * len(PAGE_BYTES) + len(AUX_BYTES)
        assert 0 < sent.writes < sent.units
        assert sent.seconds > 0
        assert sent.peers == ((DECODE.host, sent.nbytes),)
        assert 0 < sent.exposed_seconds < 600


def test_decode_is_told_nothing_about_a_healthy_transfer() -> None:
    with pair() as both:
        both.introduce()
        for room in range(1, 6):
            both.pull(room, DST)
            send_all(both, room)
            assert both.wait_sent(room)[0] is SendState.DONE
            assert both.to_decode == []
            assert both.wait_received(room)[0] is ReceiveState.COMPLETE
            both.prefill.close(room)
            both.decode.close(room)
        assert both.to_decode == []


def test_a_request_whose_pages_decode_already_has_needs_only_the_metadata_row() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, [], aux_row=1)
        send_all(both, 1, np.array([], np.int32))
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE
        assert_arrived(both, np.array([], np.int64), [], (5, 1))


def test_pages_that_arrive_before_the_layout_is_known_are_counted() -> None:
    with pair() as both:
        both.prefill.on_hello(wire(both.decode.hello(PREFILL)))
        held = both.to_decode.pop()
        assert isinstance(held, Welcome)
        both.pull(1, DST)
        send_all(both, 1)
        assert both.wait_sent(1)[0] is SendState.DONE
        assert both.decode.poll(1)[0] is ReceiveState.COUNTING
        both.to_decode.append(held)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE


def test_one_missing_unit_means_that_the_request_is_not_complete() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        both.prefill.open(1)
        both.prefill.send(1, SRC, 0)
        while both.target.engine.stats().units_counted < len(SRC) * len(PAGE_BYTES):
            assert both.decode.poll(1)[0] is ReceiveState.COUNTING
        assert both.decode.poll(1)[0] is ReceiveState.COUNTING


def test_unlike_layouts_are_refused_on_both_sides_with_the_fields_that_differ() -> None:
    other = msgspec.structs.replace(LAYOUT, page_size=64, dtype="bfloat16")
    with pair(layout=other) as both:
        both.introduce()
        assert both.pull(1, DST) is SendState.FAILED
        state, reason = both.prefill.open(1)
        assert state is SendState.FAILED
        both.deliver()
        assert both.decode.poll(1) == (ReceiveState.FAILED, reason)
        for words in ("page_size: prefill has 16, decode has 64", "float32", "bfloat16", "--page-size"):
            assert words in (reason or "")


def test_another_number_of_pages_than_prefill_has_is_an_error_on_both_sides() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST[:-1])
        send_all(both, 1)
        assert both.prefill.poll(1) == (SendState.FAILED, "prefill has 5 pages to send, decode asked for 4")
        assert both.wait_received(1) == (
            ReceiveState.FAILED,
            "prefill has 5 pages to send, decode asked for 4",
        )
        assert not any(buffer.any() for buffer in both.target.kv)


@pytest.mark.parametrize("prefills", ["prefill", "decode"])
def test_sides_that_leave_the_first_token_to_different_servers_fail_the_request(prefills: FirstToken) -> None:
    decodes: FirstToken = "decode" if prefills == "prefill" else "prefill"
    with pair() as both:
        both.introduce()
        pages = np.array(DST, np.int32)
        both.prefill.on_pull(wire(both.decode.pull(1, [PREFILL], pages, 0, 0, 1, first_token=decodes)))
        both.prefill.open(1)
        both.prefill.expect(1, len(DST), first_token=prefills)
        state, reason = both.prefill.poll(1)
        assert state is SendState.FAILED
        assert f"prefill leaves the first token to {prefills}, decode to {decodes}" in (reason or "")
        assert both.wait_received(1) == (ReceiveState.FAILED, reason)
        both.prefill.on_pull(wire(both.decode.pull(2, [PREFILL], pages, 0, 0, 1, first_token=decodes)))
        both.prefill.open(2)
        both.prefill.expect(2, len(DST), first_token=decodes)
        assert both.prefill.poll(2)[0] is SendState.READY


@pytest.mark.parametrize("early", [True, False], ids=["before it is known", "after"])
def test_a_request_that_decode_refuses_ends_on_prefill_whichever_comes_first(early: bool) -> None:
    with pair() as both:
        both.introduce()
        if not early:
            assert both.prefill.open(1) == (SendState.ASKED, None)
        both.prefill.refuse(1, "its grammar cannot be compiled")
        if early:
            both.prefill.open(1)
        assert both.prefill.poll(1) == (SendState.FAILED, "its grammar cannot be compiled")


def test_a_page_outside_of_the_peers_pool_is_never_written() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, [*DST[:-1], 32])
        send_all(both, 1)
        state, reason = both.wait_received(1)
        assert state is ReceiveState.FAILED
        assert "outside the peer's region" in (reason or "")


def test_an_aborted_room_is_quiet_only_when_its_writes_have_ended_and_sends_nothing_more() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        both.prefill.open(1)
        both.prefill.send(1, SRC[:2], 0)
        assert not quiet(both.prefill, 1)
        both.prefill.fail(1, "aborted by decode")
        while not quiet(both.prefill, 1):
            both.prefill.sweep()
        counted = both.source.engine.stats().writes_posted
        both.prefill.send(1, SRC[2:], 2)
        both.prefill.finish(1, 5)
        assert quiet(both.prefill, 1)
        assert both.source.engine.stats().writes_posted == counted


def test_an_abort_that_overtakes_its_pull_still_ends_the_room() -> None:
    with pair() as both:
        both.introduce()
        pull = both.decode.pull(1, [PREFILL], np.array(DST, np.int32), 0, 0, 1)
        both.prefill.open(1)
        both.decode.abort(1, "aborted")
        both.deliver()
        assert both.decode.released(1)
        assert both.prefill.poll(1)[0] is SendState.ASKED
        assert both.prefill.on_pull(pull) is SendState.FAILED
        assert both.prefill.poll(1) == (SendState.FAILED, "aborted by decode")


def test_a_room_that_ended_on_prefill_fails_a_later_pull_at_once() -> None:
    with pair() as both:
        both.introduce()
        both.prefill.open(1)
        both.prefill.fail(1, "timed out")
        both.prefill.close(1)
        both.pull(1, DST)
        assert both.wait_received(1) == (ReceiveState.FAILED, "timed out")


def test_a_room_number_may_be_used_again_after_success() -> None:
    with pair() as both:
        both.introduce()
        for _ in range(2):
            both.pull(1, DST)
            send_all(both, 1)
            assert both.wait_received(1)[0] is ReceiveState.COMPLETE
            assert both.wait_sent(1)[0] is SendState.DONE
            both.prefill.close(1)
            both.decode.close(1)


def test_a_restarted_decode_ends_the_rooms_of_its_predecessor() -> None:
    with pair(incarnation=1) as both:
        both.introduce()
        both.pull(1, DST)
        both.prefill.open(1)
        hello = both.decode.hello(PREFILL)
        both.prefill.on_hello(msgspec.structs.replace(hello, incarnation=2))
        assert both.prefill.poll(1) == (SendState.FAILED, "the decode that asked for it was restarted")
        stale = Pull(1, 9, 0, 1, b"", 0, 0, 1)
        assert both.prefill.on_pull(stale) is SendState.ASKED


def test_bad_news_of_an_earlier_owner_is_ignored() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        ours = both.incarnation
        both.decode.on_failure(Failure(PREFILL, ours, 1, 0, 99, "of another generation"))
        both.decode.on_failure(Failure(PREFILL, ours, 2, 0, 1, "of another room"))
        both.decode.on_failure(Failure(PREFILL, ours + 1, 1, 0, 1, "of another process at the same place"))
        both.decode.on_failure(Failure(Endpoint("prefill", 2), ours, 1, 0, 1, "of another rank"))
        send_all(both, 1)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE


def test_late_writes_of_a_failed_request_are_not_counted_for_the_next_owner_of_its_slot() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        both.decode.on_failure(Failure(PREFILL, both.incarnation, 1, 0, 1, "somebody else's fault"))
        assert both.decode.poll(1)[0] is ReceiveState.FAILED
        both.decode.close(1)
        send_all(both, 1)
        assert both.wait_sent(1)[0] is SendState.DONE
        expected = len(SRC) * len(PAGE_BYTES) + len(AUX_BYTES)
        while both.target.engine.stats().immediates_late == 0:
            pass
        assert both.target.engine.stats().units_counted < expected
        assert both.target.engine.slot_units(0) == 0


def test_a_decode_that_shares_nothing_is_refused_where_mapping_is_required() -> None:
    with pair("mapped") as both:
        hello = msgspec.structs.replace(both.decode.hello(PREFILL), shared=None)
        both.prefill.on_hello(wire(hello))
        both.deliver()
        both.pull(1, DST)
        state, reason = both.wait_received(1)
        assert state is ReceiveState.FAILED
        assert "SGLANG_PD_FABRIC_SAME_HOST=map" in (reason or "")


def test_memory_that_cannot_be_mapped_is_reached_by_the_provider() -> None:
    with pair("tcp", same_host="auto") as both:
        foreign = Share("another host", 1, 1, 1, 4096)
        hello = msgspec.structs.replace(both.decode.hello(PREFILL), shared=Shared(foreign, ()))
        both.prefill.on_hello(wire(hello))
        both.deliver()
        both.pull(1, DST)
        send_all(both, 1)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE
        assert both.target.engine.stats().units_counted


def test_two_live_requests_cannot_share_a_room() -> None:
    with pair() as both:
        both.introduce()
        both.pull(1, DST)
        with pytest.raises(RoomInUseError, match="bootstrap_room 1 is in use"):
            both.pull(1, DST)


def test_a_stranger_is_not_served() -> None:
    with pair() as both:
        assert both.prefill.on_pull(Pull(77, 1, 0, 1, b"", 0, 0, 1)) is SendState.ASKED
        assert both.to_decode == []
        assert both.prefill.held().rooms == 0


def test_a_welcome_from_a_stranger_changes_nothing() -> None:
    with pair() as both:
        both.decode.on_welcome(Welcome(Endpoint("nobody", 9), 1, 1, LAYOUT, (), 10.0))
        both.introduce()
        both.pull(1, DST)
        send_all(both, 1)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE


@pytest.mark.parametrize("kind", [SendState, ReceiveState])
def test_what_is_not_a_legal_transition_raises(kind: type[SendState] | type[ReceiveState]) -> None:
    last = list(kind)[-1]
    for following in kind:
        with pytest.raises(IllegalTransitionError):
            transition(last, following)
