"""A decode rank in a process of its own: messages go over a pipe, pages over libfabric."""

import multiprocessing as mp
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sglang_pd_fabric.fabric.address import describe_address
from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.decode import DecodeMessenger
from sglang_pd_fabric.messenger.messages import Endpoint, Message

from .pair import DECODE, LAYOUT, PREFILL, buffers, open_engine

HANG = 60.0  # seconds: only ends a test that hangs


class _Service:
    """Each public method is a question for ``Remote.ask``; messages pass encoded."""

    def __init__(self, nics: int) -> None:
        self._engine = open_engine("tcp", nics=nics, both_ways=True)
        self._target = buffers(self._engine, None)
        self._decode = DecodeMessenger(
            self._engine, LAYOUT, *self._target.regions(), 1, DECODE, self._answers_nobody
        )

    @staticmethod
    def _answers_nobody(_endpoint: Endpoint, message: Message) -> None:
        raise AssertionError(f"no path breaks here, and yet decode sends {message}")

    def hello(self) -> list[bytes]:
        return messages.encode(self._decode.hello(PREFILL))

    def pull(self, room: int, pages: list[int]) -> list[bytes]:
        return messages.encode(
            self._decode.pull(
                room, [PREFILL], np.array(pages, np.int32), aux_row=0, prefix_tokens=0, decode_ranks=1
            )
        )

    def welcome(self, frames: list[bytes]) -> list[bytes] | None:
        welcome = messages.decode(frames)
        assert isinstance(welcome, messages.Welcome)
        answer = self._decode.on_welcome(welcome)
        return messages.encode(answer) if answer else None

    def poll(self, room: int) -> tuple[Any, str | None]:
        return self._decode.poll(room)

    def ports(self) -> list[int]:
        return [int(describe_address(nic.address).rpartition(":")[2]) for nic in self._engine.nics]

    def page(self, buffer: int, page: int) -> bytes:
        return self._target.kv[buffer][page].tobytes()

    def close(self) -> None:
        self._engine.close()


def _serve(pipe: Connection, nics: int) -> None:
    service = _Service(nics)
    while True:
        name, arguments = pipe.recv()
        try:
            pipe.send((getattr(service, name)(*arguments), None))
        except Exception:
            pipe.send((None, traceback.format_exc()))
        if name == "close":
            return


class Remote:
    """The handle on the process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def ask(self, name: str, *arguments: object) -> Any:
        self._pipe.send((name, arguments))
        assert self._pipe.poll(HANG), "the process does not answer"
        answer, error = self._pipe.recv()
        assert error is None, error
        return answer

    def message(self, name: str, *arguments: object) -> Message:
        return messages.decode(self.ask(name, *arguments))


@contextmanager
def remote_decode(nics: int) -> Iterator[Remote]:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, nics), daemon=True)
    process.start()
    theirs.close()
    remote = Remote(ours)
    try:
        yield remote
        remote.ask("close")
        process.join(HANG)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
