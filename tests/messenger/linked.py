"""Ranks as they are in a server, without SGLang: engine, messenger and links, here or in other processes."""

import multiprocessing as mp
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Event
from typing import Any

import msgspec
import numpy as np
from standstill import frozen

from sglang_pd_fabric.messenger.decode import DecodeMessenger
from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.links import Links
from sglang_pd_fabric.messenger.messages import Endpoint, Message, Welcome
from sglang_pd_fabric.messenger.prefill import PrefillMessenger
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .far_end import HANG, HOST, QUICK
from .pair import LAYOUT, buffers, open_engine

SECRET = b"a secret of the tests"


class Rank:
    """What both sides have. A message goes to the messenger's method of its name."""

    messenger: Any

    def __init__(self, seed: int | None) -> None:
        self.engine = open_engine("tcp")
        self.buffers = buffers(self.engine, seed)
        self.links = Links(HOST, SECRET, QUICK)
        self.endpoint = self.links.endpoint
        self.lost: list[tuple[Endpoint, Loss]] = []

    def _start(self) -> None:
        self.links.start(self._receive, self._lose, getattr(self.messenger, "sweep", lambda: None))

    def _receive(self, message: Message) -> None:
        answer = getattr(self.messenger, f"on_{type(message).__name__.lower()}")(message)
        if isinstance(message, Welcome) and answer is not None:
            self._send(message.prefill, answer)

    def _send(self, peer: Endpoint, message: Message) -> None:
        self.links.send(peer, message)

    def _lose(self, peer: Endpoint, loss: Loss) -> None:
        self.lost.append((peer, loss))
        self.messenger.lost(peer, loss)

    def close(self) -> None:
        self.engine.close()
        self.links.close()


class PrefillRank(Rank):
    def __init__(self) -> None:
        super().__init__(seed=1)
        layout = msgspec.structs.replace(LAYOUT, provider="tcp")
        self.messenger = PrefillMessenger(self.engine, layout, *self.buffers.regions(), self._send)
        self._start()

    def open(self, room: int) -> None:
        """Takes the request, and returns when decode has pulled it."""
        self.messenger.open(room)
        wait_for(lambda: self.messenger.poll(room)[0] is SendState.READY)

    def serve(self, room: int, pages: list[int]) -> None:
        """Sends everything."""
        self.messenger.send(room, np.array(pages, np.int32), 0)
        self.messenger.finish(room, 0)

    def end(self, room: int) -> tuple[SendState, str | None]:
        """How the request ends."""
        ended = (SendState.DONE, SendState.FAILED)
        wait_for(lambda: self.messenger.poll(room)[0] in ended)
        state, reason = self.messenger.poll(room)
        return state, reason

    def page(self, buffer: int, page: int) -> bytes:
        return bytes(self.buffers.kv[buffer][page].tobytes())


class DecodeRank(Rank):
    def __init__(self) -> None:
        super().__init__(seed=None)
        layout = msgspec.structs.replace(LAYOUT, provider="tcp")
        regions = self.buffers.regions()
        incarnation = int.from_bytes(os.urandom(4), "little")
        self.messenger = DecodeMessenger(
            self.engine, layout, *regions, incarnation, self.endpoint, self._send, self.buffers.shared()
        )
        self._start()

    def meet(self, prefill: Endpoint) -> None:
        self._send(prefill, self.messenger.hello(prefill))

    def pull(self, prefill: Endpoint, room: int, pages: list[int]) -> None:
        self._send(prefill, self.messenger.pull(room, [prefill], np.array(pages, np.int32), 0, 0, 1))

    def end(self, room: int) -> tuple[ReceiveState, str | None]:
        """How the request ends."""
        wait_for(lambda: self.messenger.poll(room)[0] is not ReceiveState.COUNTING)
        state, reason = self.messenger.poll(room)
        return state, reason

    def page(self, buffer: int, page: int) -> bytes:
        return bytes(self.buffers.kv[buffer][page].tobytes())


def wait_for(true: Callable[[], bool]) -> None:
    """Asks until it is so: messengers are polled, as a scheduler polls them."""
    pause = Event()
    for _ in range(int(HANG / 0.005)):
        if true():
            return
        pause.wait(0.005)
    raise TimeoutError("it never came to be so")


def _serve(pipe: Connection, side: type[Rank]) -> None:
    rank = side()
    pipe.send((rank.endpoint, None))
    with suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            try:
                pipe.send((getattr(rank, name)(*arguments), None))
            except Exception:
                pipe.send((None, traceback.format_exc()))


class Away:
    """The handle on a rank in another process; its methods by name."""

    def __init__(self, side: type[Rank]) -> None:
        context = mp.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, side), daemon=True)
        self._process.start()
        theirs.close()
        self.endpoint: Endpoint = self._answer()

    def ask(self, name: str, *arguments: object) -> Any:
        self._pipe.send((name, arguments))
        return self._answer()

    def _answer(self) -> Any:
        assert self._pipe.poll(HANG), "the process does not answer"
        answer, error = self._pipe.recv()
        assert error is None, error
        return answer

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def frozen(self) -> AbstractContextManager[None]:
        return frozen(self._process.pid)


@contextmanager
def away(side: type[Rank]) -> Iterator[Away]:
    """A rank in a process of its own."""
    rank = Away(side)
    try:
        yield rank
    finally:
        rank.kill()


@contextmanager
def here(side: Callable[[], Any]) -> Iterator[Any]:
    """A rank in this process."""
    rank = side()
    try:
        yield rank
    finally:
        rank.close()
