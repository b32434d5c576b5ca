"""Checksums on request: a byte that is not what a writer wrote fails the request, with writer and buffer."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from sharded import Model, Server

from sglang_pd_fabric.messenger import integrity
from sglang_pd_fabric.messenger.messages import Digest, Endpoint, Message, Pull, Refusal, Spoiled
from sglang_pd_fabric.messenger.sharding import expected_units
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .groups import groups
from .pair import DST, PREFILL, SRC, Pair, pair
from .test_sharding import CASES, REQUEST


def pulled(both: Pair, room: int = 1, pages: list[int] = DST) -> Pull:
    pull = both.decode.pull(room, [PREFILL], np.array(pages, np.int32), 2, 0, 1)
    assert both.prefill.on_pull(pull) is SendState.READY
    both.prefill.open(room)
    return pull


def send(both: Pair, room: int = 1, src: np.ndarray = SRC) -> None:
    both.prefill.send(room, src[:2], 0)
    both.prefill.send(room, src[2:], 2)
    both.prefill.finish(room, 5)


def all_units_in(both: Pair, pull: Pull, pages: int = len(SRC)) -> None:
    """Everything has come, and no digest was delivered."""
    units = pages * len(both.source.kv) + len(both.source.aux)
    while both.target.engine.slot_units(pull.slot) < units:
        assert both.prefill.poll(pull.room)[0] is not SendState.FAILED
    assert both.decode.poll(pull.room) == (ReceiveState.COUNTING, None)


def arrived(both: Pair) -> Pull:
    """A room of which everything but the digest has come."""
    both.introduce()
    pull = pulled(both)
    send(both)
    all_units_in(both, pull)
    return pull


@pytest.mark.parametrize("provider", ["tcp", "shm", "mapped"])
def test_a_healthy_request_is_complete_with_one_message_more(provider: str) -> None:
    with pair(provider, integrity=True) as both:
        both.introduce()
        for room in range(1, 4):
            pull = pulled(both, room)
            send(both, room)
            (digest,) = both.to_decode
            assert isinstance(digest, Digest)
            assert (digest.slot, digest.generation) == (pull.slot, pull.generation)
            assert len(digest.sums) == len(both.source.kv) + len(both.source.aux)
            all_units_in(both, pull)
            assert both.wait_received(room) == (ReceiveState.COMPLETE, None)
            assert both.wait_sent(room)[0] is SendState.DONE
            both.prefill.close(room)
            both.decode.close(room)


def test_without_it_no_message_is_sent() -> None:
    with pair() as both:
        both.introduce()
        pulled(both)
        send(both)
        assert both.wait_sent(1)[0] is SendState.DONE
        assert both.to_decode == []
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)


@pytest.mark.parametrize("provider", ["tcp", "shm"])
@pytest.mark.parametrize(
    ("kind", "buffer", "place", "name"),
    [
        ("kv", 0, (7, 0), "K of layer 0"),
        ("kv", 1, (30, 4095), "K of layer 1"),
        ("kv", 3, (1, 512), "V of layer 1"),
        ("aux", 1, (2, 127), "metadata buffer 1"),
    ],
)
def test_a_flipped_bit_in_decodes_memory_fails_the_request(
    provider: str, kind: str, buffer: int, place: tuple[int, int], name: str
) -> None:
    with pair(provider, integrity=True) as both:
        arrived(both)
        getattr(both.target, kind)[buffer][place] ^= 1
        state, reason = both.wait_received(1)
        assert state is ReceiveState.FAILED
        assert reason == (
            f"integrity: what decode holds is not what prefill {PREFILL} (TP 0 of 1, PP 0) wrote: {name}"
        )


def test_bytes_that_no_writer_wrote_do_not_matter() -> None:
    with pair(integrity=True) as both:
        arrived(both)
        both.target.kv[0][6] ^= 1
        both.target.aux[0][3] ^= 1
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)


def test_all_buffers_that_differ_are_counted() -> None:
    with pair(integrity=True) as both:
        arrived(both)
        for buffer in (*both.target.kv, *both.target.aux):
            buffer ^= 1  # noqa: PLW2901 - in place
        assert (both.wait_received(1)[1] or "").endswith("V of layer 1 and 2 others")


def test_pages_that_left_layer_by_layer_must_be_what_they_are_in_the_end() -> None:
    """The digest is taken after the last pass: a page that was sent too early is seen."""
    with pair(integrity=True) as both:
        both.introduce()
        pull = pulled(both)
        assert both.prefill.plan(1, SRC, 0, forward=3)
        both.source.engine.progress.store(4, 0)
        while both.target.engine.slot_units(pull.slot) < len(SRC) * len(both.source.kv):
            pass
        both.source.kv[2][9, 100] ^= 1
        both.prefill.finish(1, 5)
        assert (both.wait_received(1)[1] or "").endswith("wrote: V of layer 0")


def test_a_request_that_decode_has_entirely_is_checked_by_its_row() -> None:
    with pair(integrity=True) as both:
        both.introduce()
        for room, flipped in ((1, 0), (2, 1)):
            pull = pulled(both, room, [])
            both.prefill.finish(room, 5)
            all_units_in(both, pull, 0)
            both.target.aux[0][2] ^= flipped
            assert both.wait_received(room)[0] is (ReceiveState.FAILED if flipped else ReceiveState.COMPLETE)


def test_a_digest_that_never_comes_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with pair(integrity=True) as both:
        arrived(both)
        both.to_decode.clear()
        monkeypatch.setattr(integrity, "DIGEST_SECONDS", 0.0)
        assert both.wait_received(1) == (
            ReceiveState.FAILED,
            f"integrity: no digest came from prefill {PREFILL}",
        )


@pytest.mark.parametrize("field", ["incarnation", "room", "slot", "generation", "prefill"])
def test_a_digest_of_anything_else_is_not_taken(field: str) -> None:
    with pair(integrity=True) as both:
        arrived(both)
        (digest,) = both.to_decode
        assert isinstance(digest, Digest)
        both.decode.on_digest(changed(digest, field))
        assert both.decode.poll(1) == (ReceiveState.COUNTING, None)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)


def changed(digest: Digest, field: str) -> Digest:
    values = {name: getattr(digest, name) for name in digest.__struct_fields__}
    other = Endpoint("somebody", 1) if field == "prefill" else values[field] + 1
    return Digest(**{**values, "sums": (0,), field: other})


def test_a_digest_of_another_shape_fails_the_request() -> None:
    with pair(integrity=True) as both:
        pull = arrived(both)
        (digest,) = both.to_decode
        assert isinstance(digest, Digest)
        both.to_decode[:] = [Digest(PREFILL, 1, 1, pull.slot, pull.generation, digest.sums[1:])]
        assert (both.wait_received(1)[1] or "").endswith("sent 5 checksums where it writes 6 buffers")


@pytest.mark.parametrize("finished", [False, True])
def test_a_room_that_is_sent_again_is_checked_in_its_new_slot(finished: bool) -> None:
    with pair(integrity=True) as both:
        both.introduce()
        pull = pulled(both)
        both.prefill.send(1, SRC, 0)
        if finished:
            both.prefill.finish(1, 5)
        both.decode.on_spoiled(Spoiled(PREFILL, both.incarnation, 1, pull.slot, pull.generation))
        both.decode.poll(1)
        early, both.to_decode[:] = list(both.to_decode), []
        both.deliver()
        if not finished:
            both.prefill.finish(1, 5)
        while not (said := digests(both.to_decode)):
            both.prefill.sweep()
        assert (said[0].slot, said[0].generation) != (pull.slot, pull.generation)
        both.to_decode[:0] = early  # what was said of the old slot comes late
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)


def digests(messages: list[Message]) -> list[Digest]:
    return [message for message in messages if isinstance(message, Digest)]


def test_an_aborted_room_is_not_checked_and_its_number_can_be_used_again() -> None:
    with pair(integrity=True) as both:
        arrived(both)
        late, both.to_decode[:] = list(both.to_decode), []
        both.decode.abort(1, "aborted")
        assert both.wait_sent(1)[0] is SendState.DONE
        both.end(1)
        both.to_decode[:] = late
        both.deliver()
        again = pulled(both)
        send(both)
        all_units_in(both, again)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)


def test_a_decode_whose_regions_are_not_its_layouts_is_refused() -> None:
    with pair() as both:
        hello = both.decode.hello(PREFILL)
        for wrong in ({"kv": hello.kv[1:]}, {"kv": (*hello.kv, hello.kv[0])}, {"aux": ()}):
            both.prefill.on_hello(msgspec.structs.replace(hello, **wrong))
            message = both.to_decode.pop()
            assert isinstance(message, Refusal)
            assert "regions, not its layout's" in message.reason
        both.introduce()
        pulled(both)


@pytest.mark.parametrize("order", ["nhd", "hnd"])
@pytest.mark.parametrize("case", CASES)
def test_every_writer_of_every_pair_of_layouts_is_checked(case: str, order: str) -> None:
    """Healthy first; then one byte that the last writer wrote is another, and it is named with its rank."""
    model, prefill, decode = checked(case, order)
    with groups(model, prefill, decode, REQUEST) as world:
        world.pull(REQUEST)
        world.send(REQUEST)
        world.assert_arrived(REQUEST)
    with groups(model, prefill, decode, REQUEST) as world:
        world.pull(REQUEST)
        world.send(REQUEST)
        last = world.decodes[-1]
        said = [message for endpoint, message in world.mail if endpoint == last.endpoint]
        assert len(said) == len(digests(said)) >= 1
        # The last byte of the last page of the last buffer before the metadata: the last layer's, or the
        # draft's. It has come when all units are in.
        slot, salt = digests(said)[0].slot, digests(said)[0].incarnation
        units = expected_units(
            [each.rank.layout for each in last.met],
            last.rank.layout,
            REQUEST.room,
            salt,
            len(REQUEST.dst_pages),
        )
        while last.engine.slot_units(slot) < units:
            pass
        last.rank.memory[len(last.rank.buffers) - 1][REQUEST.dst_pages[-1], -1] ^= 1
        state, reason = world.received(last, REQUEST.room)
        assert state is ReceiveState.FAILED
        assert "integrity: what decode holds is not what prefill" in (reason or "")
        writers = {message.prefill for message in digests(said)}
        assert any(str(writer) in (reason or "") for writer in writers)


def checked(case: str, order: str) -> tuple[Model, Server, Server]:
    model, prefill, decode = CASES[case]
    return replace(model, order=order, integrity=True), prefill, decode
