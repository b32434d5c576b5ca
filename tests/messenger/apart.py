"""A prefill rank here and a decode rank in a process of its own, which can be frozen."""

import multiprocessing as mp
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np
from standstill import frozen

from sglang_pd_fabric.fabric.mapped import SharedMemory, SharedRegion
from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.decode import DecodeMessenger
from sglang_pd_fabric.messenger.messages import (
    Failure,
    Message,
    Shared,
)
from sglang_pd_fabric.messenger.prefill import PrefillMessenger

from .pair import DECODE, LAYOUT, PREFILL, open_engine

PAGES = 16
AUX_BYTES = (256,)
LAYERS = 2
BIG = msgspec.structs.replace(
    LAYOUT, page_bytes=(1 << 20, 1 << 19, 1 << 20, 1 << 19), aux_bytes=AUX_BYTES, layers=LAYERS
)
HANG = 60


class DecodeRank:
    """Runs in the other process; each method is a question that ``Apart.ask`` puts."""

    def __init__(self, provider: str, nics: int, stall: float, absence: float) -> None:
        self.engine = open_engine(provider, stall, nics, absence=absence)
        layout = msgspec.structs.replace(BIG, provider=provider)
        blocks = [SharedMemory.create(PAGES * size) for size in layout.page_bytes]
        rows = [SharedMemory.create(4096) for _ in AUX_BYTES]
        self.kv = [block.array().reshape(PAGES, -1) for block in blocks]
        kv, aux = (
            [self.engine.register(block.address, block.nbytes, block) for block in group]
            for group in (blocks, rows)
        )
        share = self.engine.slot_share
        parts = tuple(SharedRegion(block.share, 0, block.nbytes) for block in (*blocks, *rows))
        shared = Shared(share, parts) if share else None
        self.sent: list[list[bytes]] = []
        self.messenger = DecodeMessenger(self.engine, layout, kv, aux, 1, DECODE, self._send, shared)

    def _send(self, _endpoint: object, message: Message) -> None:
        self.sent.append(messages.encode(message))

    def take_sent(self) -> list[list[bytes]]:
        sent, self.sent = self.sent, []
        return sent

    def hello(self) -> list[bytes]:
        return messages.encode(self.messenger.hello(PREFILL))

    def pull(self, room: int, pages: list[int]) -> list[bytes]:
        return messages.encode(self.messenger.pull(room, [PREFILL], np.array(pages, np.int32), 0, 0, 1))

    def deliver(self, frames: list[bytes]) -> None:
        message = messages.decode(frames)
        getattr(self.messenger, f"on_{type(message).__name__.lower()}")(message)

    def abort(self, room: int) -> None:
        self.messenger.abort(room, "aborted")

    def released(self, room: int) -> bool:
        self.messenger.sweep()
        return self.messenger.released(room)

    def poll(self, room: int) -> tuple[str, str | None]:
        state, reason = self.messenger.poll(room)
        return state.value, reason

    def pages(self, buffer: int, pages: list[int]) -> Any:
        return self.kv[buffer][pages].copy()

    def close(self) -> None:
        self.engine.close()


def _serve(pipe: Connection, *how: Any) -> None:
    rank = DecodeRank(*how)
    with suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            pipe.send(getattr(rank, name)(*arguments))


class Apart:
    """The prefill side, and the handle on the decode side."""

    def __init__(self, provider: str, nics: int, stall: float, absence: float) -> None:
        context = mp.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, provider, nics, stall, absence), daemon=True
        )
        self.process.start()
        theirs.close()
        self.engine = open_engine(provider, stall, nics)
        random = np.random.default_rng(3)
        self.kv = [random.integers(1, 256, (PAGES, size), np.uint8) for size in BIG.page_bytes]
        self.aux = [random.integers(1, 256, (16, size), np.uint8) for size in AUX_BYTES]
        kv, aux = (
            [self.engine.register(buffer.ctypes.data, buffer.nbytes, buffer) for buffer in group]
            for group in (self.kv, self.aux)
        )
        self.failures: list[Message] = []
        layout = msgspec.structs.replace(BIG, provider=provider)
        same_host = "map" if provider == "mapped" else "provider"
        self.prefill = PrefillMessenger(self.engine, layout, kv, aux, self._send, same_host)
        self._frozen = False
        self._to_decode: list[list[bytes]] = []
        self.prefill.on_hello(messages.decode(self.ask("hello")))

    def ask(self, name: str, *arguments: object) -> Any:
        self._pipe.send((name, arguments))
        if not self._pipe.poll(HANG):
            raise TimeoutError("the decode process does not answer")
        return self._pipe.recv()

    def _send(self, _endpoint: object, message: Message) -> None:
        self.failures += [message] if isinstance(message, Failure) else []
        self._to_decode.append(messages.encode(message))
        self.deliver()

    def deliver(self) -> None:
        """Hands each what the other has sent, unless decode stands still."""
        while self._to_decode and not self._frozen:
            self.ask("deliver", self._to_decode.pop(0))

    def pull(self, room: int, pages: list[int]) -> None:
        self.prefill.on_pull(messages.decode(self.ask("pull", room, pages)))
        self.prefill.open(room)

    def wait_received(self, room: int) -> tuple[str, str | None]:
        while (answer := self.ask("poll", room))[0] == "counting":
            self.prefill.poll(room)
            self.take_from_decode()
        return answer

    def take_from_decode(self) -> None:
        """Hands prefill what decode has sent."""
        for frames in self.ask("take_sent"):
            message = messages.decode(frames)
            getattr(self.prefill, f"on_{type(message).__name__.lower()}")(message)

    def wait_released(self, room: int) -> None:
        """Until decode knows that nobody writes for an aborted room any more."""
        while not self.ask("released", room):
            self.prefill.sweep()
            self.take_from_decode()

    def kill(self) -> None:
        """The decode process ends without a word."""
        self._frozen = True
        self.process.kill()
        self.process.join()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The decode process stands still."""
        with frozen(self.process.pid):
            self._frozen = True
            try:
                yield
            finally:
                self._frozen = False
        self.deliver()


@contextmanager
def apart(provider: str, nics: int = 1, stall: float = 10.0, absence: float = 5.0) -> Iterator[Apart]:
    both = Apart(provider, nics, stall, absence)
    try:
        yield both
        if both.process.is_alive():
            both.ask("close")
    finally:
        both.process.kill()
        both.process.join()
        both.engine.close()
