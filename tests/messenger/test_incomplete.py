"""One piece of one buffer is lost, altered or breaks off: the request is never taken for complete.

Between prefill and decode stands a relay that tells writes by their region. Every buffer has its turn: keys
and values of every layer, those of a draft model, and each metadata row.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from sharded import Model, Request, Server, must_hold
from tcp_relay import Fate, TcpRelay

from sglang_pd_fabric.messenger.messages import Hello
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .groups import POOL_PAGES, Groups, groups

MODEL = Model(kv_heads=2, layers=2, draft_layers=1, page_size=16)
ONE = Server(1, (2,))
REQUEST = Request(room=7, salt=0, prefix=0, src_pages=(3, 4, 5, 9), dst_pages=(8, 9, 1, 2))
BUFFERS = ("K 0", "K 1", "V 0", "V 1", "draft K", "draft V", "row 0", "row 1", "row 2")


@dataclass
class Way:
    """To decode, past a relay that waits for the first piece of one buffer."""

    victim: int
    fate: Fate
    stack: ExitStack
    keys: dict[int, int] = field(default_factory=dict)
    met: bool = False

    def greet(self, hello: Hello) -> Hello:
        """Decode's introduction, with the relay's address in place of decode's."""
        self.keys = {region.keys[0]: place for place, region in enumerate((*hello.kv, *hello.aux))}
        assert len(self.keys) == len(BUFFERS)
        relay = self.stack.enter_context(TcpRelay(hello.addresses[0], self._judge))
        return msgspec.structs.replace(hello, addresses=(relay.address,))

    def _judge(self, key: int) -> Fate:
        if self.keys[key] != self.victim or self.met:
            return Fate.PASSES
        self.met = True
        return self.fate


@contextmanager
def spoiled(buffer: str, fate: Fate, *, integrity: bool = False) -> Iterator[Groups]:
    """One request on its way, a piece of which meets its fate."""
    with ExitStack() as stack:
        way = Way(BUFFERS.index(buffer), fate, stack)
        model = replace(MODEL, integrity=integrity)
        stall = 5.0 if fate is Fate.IS_LOST else 60.0  # only then the deadline has to end it
        world = stack.enter_context(groups(model, ONE, ONE, REQUEST, greet=way.greet, stall=stall))
        world.pull(REQUEST)
        world.send(REQUEST)
        yield world
        assert way.met


def next_one_is_right(world: Groups) -> None:
    (prefill,), (decode,) = world.prefills, world.decodes
    decode.messenger.abort(REQUEST.room, "it has failed")
    while not decode.messenger.released(REQUEST.room):
        prefill.messenger.sweep()
        world.deliver()
    for side in (prefill, decode):
        side.messenger.close(REQUEST.room)
    for memory in decode.rank.memory:
        memory[:] = 0x55
    following = replace(REQUEST, room=8)
    world.pull(following)
    world.send(following)
    world.assert_arrived(following)


@pytest.mark.parametrize("buffer", ["K 0", "V 1", "draft V", "row 0", "row 2"])
def test_a_piece_that_is_lost_is_missed_whatever_else_has_come(buffer: str) -> None:
    """Prefill misses a confirmation, or has one for what came later; decode does not count to the end."""
    with spoiled(buffer, Fate.IS_LOST) as world:
        (prefill,), (decode,) = world.prefills, world.decodes
        state, _reason = world.sent(prefill, REQUEST.room)
        world.deliver()
        seen, _reason = decode.messenger.poll(REQUEST.room)
        assert seen is {SendState.DONE: ReceiveState.COUNTING, SendState.FAILED: ReceiveState.FAILED}[state]
        right = must_hold(MODEL, decode.rank, REQUEST, POOL_PAGES)
        assert any((memory != wanted).any() for memory, wanted in zip(decode.rank.memory, right, strict=True))
        next_one_is_right(world)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_a_connection_that_breaks_within_a_piece_fails_the_request_on_both_sides(buffer: str) -> None:
    with spoiled(buffer, Fate.BREAKS_OFF) as world:
        (prefill,), (decode,) = world.prefills, world.decodes
        state, reason = world.received(decode, REQUEST.room)
        assert state is ReceiveState.FAILED
        assert (reason or "").startswith("writing to decode failed: ")
        assert world.sent(prefill, REQUEST.room) == (SendState.FAILED, reason)
        next_one_is_right(world)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_a_piece_that_is_altered_fails_the_request_where_integrity_is_asked_for(buffer: str) -> None:
    with spoiled(buffer, Fate.IS_ALTERED, integrity=True) as world:
        (decode,) = world.decodes
        state, reason = world.received(decode, REQUEST.room)
        assert state is ReceiveState.FAILED
        assert "integrity: what decode holds is not what prefill" in (reason or "")
        next_one_is_right(world)
