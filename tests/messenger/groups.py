"""All ranks of a prefill and of a decode server: real engines over tcp, messages carried by plain calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from sharded import Model, Rank, Request, Server, clear_target, fill_source, must_hold, ranks

from sglang_pd_fabric.fabric.engine import Engine, Region
from sglang_pd_fabric.messenger.decode import DecodeMessenger
from sglang_pd_fabric.messenger.messages import (
    Abort,
    Again,
    Digest,
    Endpoint,
    Failure,
    Hello,
    Message,
    Quiet,
    Refusal,
    Spoiled,
    Welcome,
)
from sglang_pd_fabric.messenger.prefill import PrefillMessenger
from sglang_pd_fabric.messenger.sharding import meets, pulls_per_writer
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .pair import open_engine, wire

POOL_PAGES = 12


@dataclass
class Prefill:
    rank: Rank
    engine: Engine
    messenger: PrefillMessenger
    endpoint: Endpoint


@dataclass
class Decode:
    rank: Rank
    engine: Engine
    messenger: DecodeMessenger
    endpoint: Endpoint
    met: list[Prefill]


@dataclass
class Groups:
    model: Model
    prefills: list[Prefill] = field(default_factory=list)
    decodes: list[Decode] = field(default_factory=list)
    mail: list[tuple[Endpoint, Message]] = field(default_factory=list)
    greet: Callable[[Hello], Hello] = lambda hello: hello

    def introduce(self) -> None:
        """Every decode rank says Hello to those that SGLang would connect it with."""
        for decode in self.decodes:
            for prefill in decode.met:
                prefill.messenger.on_hello(wire(self.greet(decode.messenger.hello(prefill.endpoint))))
        self.deliver()

    def deliver(self) -> None:
        while self.mail:
            endpoint, sent = self.mail.pop(0)
            message = wire(sent)
            if isinstance(message, Again | Abort):
                (prefill,) = (each for each in self.prefills if each.endpoint == endpoint)
                if isinstance(message, Abort):
                    prefill.messenger.on_abort(message)
                else:
                    prefill.messenger.on_again(message)
                continue
            (decode,) = (each for each in self.decodes if each.endpoint == endpoint)
            if isinstance(message, Welcome):
                decode.messenger.on_welcome(message)
            elif isinstance(message, Refusal):
                decode.messenger.on_refusal(message)
            elif isinstance(message, Failure):
                decode.messenger.on_failure(message)
            elif isinstance(message, Spoiled):
                decode.messenger.on_spoiled(message)
            elif isinstance(message, Digest):
                decode.messenger.on_digest(message)
            elif isinstance(message, Quiet):
                decode.messenger.on_quiet(message)

    def pull(self, request: Request, decodes: list[Decode] | None = None) -> None:
        """The decode ranks of one attention TP group ask for the room; every one of them, as SGLang does."""
        group = decodes or self.decodes
        asked = pulls_per_writer(self.prefills[0].rank.layout.tp_size, group[0].rank.layout.tp_size)
        pages = np.array(request.dst_pages, np.int32)
        for decode in group:
            writers = [prefill.endpoint for prefill in decode.met]
            pull = decode.messenger.pull(request.room, writers, pages, request.aux_dst, request.prefix, asked)
            for prefill in decode.met:
                prefill.messenger.on_pull(wire(pull))

    def send(self, request: Request) -> None:
        """Every prefill rank sends in two chunks, since every one of them has computed the request."""
        pages = np.array(request.src_pages, np.int32)
        half = len(pages) // 2
        for prefill in self.prefills:
            state, reason = prefill.messenger.open(request.room)
            assert (state, reason) == (SendState.READY, None)
            prefill.messenger.expect(request.room, len(pages))
            prefill.messenger.send(request.room, pages[:half], 0)
            prefill.messenger.send(request.room, pages[half:], half)
            prefill.messenger.finish(request.room, request.aux_src)

    def received(self, decode: Decode, room: int) -> tuple[ReceiveState, str | None]:
        while (answer := decode.messenger.poll(room))[0] is ReceiveState.COUNTING:
            for prefill in self.prefills:
                prefill.messenger.poll(room)
            self.deliver()
        return answer

    def sent(self, prefill: Prefill, room: int) -> tuple[SendState, str | None]:
        while (answer := prefill.messenger.poll(room))[0] is SendState.FLUSHING:
            self.deliver()
        return answer

    def assert_arrived(self, request: Request, decodes: list[Decode] | None = None) -> None:
        """Completes the room and compares every byte; no byte was sent twice."""
        group = decodes or self.decodes
        self.assert_right(request, group)
        needed = sum(
            len(request.dst_pages) * sum(decode.rank.layout.page_bytes) + sum(decode.rank.layout.aux_bytes)
            for decode in group
        )
        assert sum(prefill.messenger.sent(request.room).nbytes for prefill in self.prefills) == needed

    def assert_right(self, request: Request, group: list[Decode]) -> None:
        """Completes the room and compares every byte."""
        for decode in group:
            assert self.received(decode, request.room) == (ReceiveState.COMPLETE, None)
            right = must_hold(self.model, decode.rank, request, POOL_PAGES)
            for memory, wanted in zip(decode.rank.memory, right, strict=True):
                assert (memory == wanted).all()
        for prefill in self.prefills:
            assert self.sent(prefill, request.room) == (SendState.DONE, None)


def _regions(engine: Engine, rank: Rank) -> tuple[list[Region], list[Region]]:
    regions = [engine.register(array.ctypes.data, array.nbytes, array) for array in rank.memory]
    return regions[: len(rank.buffers)], regions[len(rank.buffers) :]


@contextmanager
def groups(
    model: Model,
    prefill: Server,
    decode: Server,
    request: Request,
    decode_groups: int = 1,
    greet: Callable[[Hello], Hello] = lambda hello: hello,
    stall: float = 10.0,
) -> Iterator[Groups]:
    """The servers' ranks, already introduced.

    Args:
        decode_groups: attention TP groups of decode (DP size).
        greet: what becomes of each Hello on its way.
        stall: seconds after which an engine gives up a transfer that gets nowhere.
    """
    world = Groups(model, greet=greet)
    try:
        for index, rank in enumerate(ranks(model, prefill)):
            fill_source(model, rank, request, POOL_PAGES)
            engine = open_engine("tcp", stall)
            sending = PrefillMessenger(
                engine, rank.layout, *_regions(engine, rank), lambda *letter: world.mail.append(letter)
            )
            world.prefills.append(Prefill(rank, engine, sending, Endpoint("prefill", index + 1)))
        for index, rank in enumerate(rank for _ in range(decode_groups) for rank in ranks(model, decode)):
            clear_target(rank, POOL_PAGES)
            engine = open_engine("tcp")
            endpoint = Endpoint("decode", index + 1)
            receiving = DecodeMessenger(
                engine,
                rank.layout,
                *_regions(engine, rank),
                1000 + index,
                endpoint,
                lambda *letter: world.mail.append(letter),
            )
            met = [each for each in world.prefills if meets(each.rank.layout, rank.layout)]
            world.decodes.append(Decode(rank, engine, receiving, endpoint, met))
        world.introduce()
        yield world
    finally:
        for each in (*world.prefills, *world.decodes):
            each.engine.close()
