"""A prefill rank and a decode rank in one process: real engines over real libfabric, messages by hand.

What SGLang's integration carries over zmq is carried here by plain calls, so that a test decides when
each message arrives, and can count them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from sglang_pd_fabric.fabric.engine import Engine, Region
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.fabric.mapped import SharedMemory, SharedRegion
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.decode import DecodeMessenger
from sglang_pd_fabric.messenger.layout import PROTOCOL, LayoutRecord
from sglang_pd_fabric.messenger.liveness import HOLD_S
from sglang_pd_fabric.messenger.messages import (
    Endpoint,
    Message,
    Shared,
)
from sglang_pd_fabric.messenger.prefill import PrefillMessenger
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

PAGES = 32
PAGE_BYTES = (4096, 4096, 1024, 1024)
ROWS = 8
AUX_BYTES = (64, 128)
# Pages of a request, on either side.
SRC = np.array([3, 4, 5, 9, 17], np.int32)
DST = [7, 8, 9, 1, 30]
PREFILL = Endpoint("prefill", 1)
DECODE = Endpoint("decode", 2)

LAYOUT = LayoutRecord(
    protocol=PROTOCOL,
    model="tiny",
    attention="gqa",
    page_size=16,
    dtype="float32",
    order="nhd",
    page_bytes=PAGE_BYTES,
    aux_bytes=AUX_BYTES,
    layers=2,
    kv_heads=2,
    head_dim=32,
    tp_size=1,
    tp_rank=0,
    pp_size=1,
    pp_rank=0,
    first_layer=0,
    draft_buffers=0,
    draft_kv_heads=1,
    provider="tcp",
    version="test",
)


def open_engine(
    provider: str, stall: float = 10.0, nics: int = 1, *, both_ways: bool = False, absence: float = 5.0
) -> Engine:
    """``mapped`` is an engine over tcp whose slots may be mapped."""
    profile = replace(PROFILES["tcp" if provider == "mapped" else provider], inserts_both_ways=both_ways)
    return Engine(
        open_library(),
        profile,
        sources=[f"127.0.0.{1 + nic}" if profile.binds_host else None for nic in range(nics)],
        slots=16,
        stall=stall,
        absence=absence,
        share_slots=provider == "mapped",
        trace=1024,
    )


@dataclass
class Buffers:
    """The KV pool and the metadata rows of one rank."""

    engine: Engine
    kv: list[np.ndarray]
    aux: list[np.ndarray]

    blocks: list[SharedMemory]

    def shared(self) -> Shared | None:
        share = self.engine.slot_share
        parts = tuple(SharedRegion(block.share, 0, block.nbytes) for block in self.blocks)
        return Shared(share, parts) if share else None

    def regions(self) -> tuple[list[Region], list[Region]]:
        return tuple(  # type: ignore[return-value]
            [self.engine.register(b.ctypes.data, b.nbytes, b) for b in group] for group in (self.kv, self.aux)
        )


def buffers(engine: Engine, seed: int | None) -> Buffers:
    """Random bytes from the seed, or zeros in memory that can be mapped."""
    blocks: list[SharedMemory] = []

    def fill(rows: int, size: int) -> np.ndarray:
        if seed is not None:
            return np.random.default_rng(seed + size).integers(1, 256, (rows, size), np.uint8)
        blocks.append(SharedMemory.create(rows * size))
        return blocks[-1].array().reshape(rows, size)

    kv, aux = [fill(PAGES, size) for size in PAGE_BYTES], [fill(ROWS, size) for size in AUX_BYTES]
    return Buffers(engine, kv, aux, blocks)


@dataclass
class Pair:
    prefill: PrefillMessenger
    decode: DecodeMessenger
    source: Buffers
    target: Buffers
    to_decode: list[Message] = field(default_factory=list)
    to_prefill: list[Message] = field(default_factory=list)

    @property
    def incarnation(self) -> int:
        """Prefill's."""
        return self.prefill.incarnation

    def introduce(self) -> None:
        self.prefill.on_hello(wire(self.decode.hello(PREFILL)))
        self.deliver()

    def deliver(self) -> None:
        """Hands each what the other has sent."""
        while self.to_prefill:
            message = wire(self.to_prefill.pop(0))
            getattr(self.prefill, f"on_{type(message).__name__.lower()}")(message)
        while self.to_decode:
            message = wire(self.to_decode.pop(0))
            answer = getattr(self.decode, f"on_{type(message).__name__.lower()}")(message)
            if answer is not None:
                self.prefill.on_ready(wire(answer))

    def pass_time(self, seconds: float) -> None:
        """For decode, as far as it waits for somebody's answer."""
        self.decode._prefills.clock.seconds += seconds
        self.decode.sweep()

    def asks(self) -> None:
        """Decode asks what is to come, and hears the answer."""
        self.pass_time(2)
        self.deliver()

    def engine_passes(self) -> None:
        """Releases every plan that waits for a forward pass."""
        self.source.engine.progress.store(1 << 20, 0)

    def wait_released(self, room: int) -> None:
        """Delivers what is said until nobody can write for the room any more."""
        while not self.decode.released(room):
            self.prefill.sweep()
            self.decode.sweep()
            self.deliver()

    def end(self, room: int) -> None:
        """Both schedulers are done with a room; it ended on its own, or is aborted with that."""
        self.decode.abort(room, "aborted")
        self.wait_released(room)
        self.prefill.close(room)
        self.decode.close(room)

    def pull(self, room: int, pages: list[int], aux_row: int = 0) -> SendState:
        message = self.decode.pull(room, [PREFILL], np.array(pages, np.int32), aux_row, 0, 1)
        return self.prefill.on_pull(wire(message))

    def wait_received(self, room: int) -> tuple[ReceiveState, str | None]:
        while (answer := self.decode.poll(room))[0] is ReceiveState.COUNTING:
            self.prefill.poll(room)
            self.deliver()
        return answer

    def wait_sent(self, room: int) -> tuple[SendState, str | None]:
        while (answer := self.prefill.poll(room))[0] is SendState.FLUSHING:
            pass
        return answer


def wire(message: Message) -> Message:
    return messages.decode(messages.encode(message))


def quiet(prefill: PrefillMessenger, room: int) -> bool:
    """No write of any request with that number waits or is on a wire, and none can start any more."""
    rooms = prefill._rooms
    return all(each.over for each in (*rooms.all(), *rooms._draining.values()) if each.number == room)


@contextmanager
def pair(
    provider: str = "tcp",
    *,
    layout: LayoutRecord = LAYOUT,
    incarnation: int = 1,
    stall: float = 10.0,
    same_host: str = "provider",
    nics: tuple[int, int] = (1, 1),
    both_ways: bool = False,
    integrity: bool = False,
    rows: tuple[list[np.ndarray], list[np.ndarray]] | None = None,
    hold_s: float = HOLD_S,
) -> Iterator[Pair]:
    """A pair that has not met yet. ``layout`` is decode's, ``nics`` prefill's and decode's.

    ``rows`` are prefill's and decode's metadata buffers in place of made-up ones, shape ``[rows, bytes]``.
    """
    here = msgspec.structs.replace(LAYOUT, provider=provider, integrity=integrity)
    there = msgspec.structs.replace(layout, provider=provider, integrity=integrity)
    if rows is not None:
        sizes = tuple(buffer.shape[1] for buffer in rows[0])
        here, there = (msgspec.structs.replace(each, aux_bytes=sizes) for each in (here, there))
    engines = [open_engine(provider, stall, count, both_ways=both_ways) for count in nics]
    source, target = buffers(engines[0], 1), buffers(engines[1], None)
    if rows is not None:
        source.aux, target.aux = rows
    sent: list[Message] = []
    answered: list[Message] = []
    prefill = PrefillMessenger(
        source.engine,
        here,
        *source.regions(),
        lambda _endpoint, message: sent.append(message),
        "map" if provider == "mapped" else same_host,
    )
    decode = DecodeMessenger(
        target.engine,
        there,
        *target.regions(),
        incarnation,
        DECODE,
        lambda _endpoint, message: answered.append(message),
        target.shared(),
        hold_s=hold_s,
    )
    try:
        yield Pair(prefill, decode, source, target, sent, answered)
    finally:
        source.engine.close()
        target.engine.close()


def started(both: Pair, room: int = 1) -> None:
    both.pull(room, DST)
    both.prefill.open(room)
    both.prefill.send(room, SRC[:2], 0)


def written(both: Pair, room: int) -> None:
    """Everything of a request that was pulled is handed over."""
    both.prefill.open(room)
    both.prefill.send(room, SRC, 0)
    both.prefill.finish(room, 5)


def served(both: Pair, room: int) -> None:
    """A whole request, after both have met anew."""
    both.introduce()
    both.pull(room, DST)
    written(both, room)
    assert both.wait_received(room) == (ReceiveState.COMPLETE, None)
    assert both.wait_sent(room) == (SendState.DONE, None)
    both.end(room)
