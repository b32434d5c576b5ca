"""A rank's control plane in a process of its own, which can be killed, frozen and kept busy."""

import ctypes
import multiprocessing as mp
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Self

from standstill import frozen

from sglang_pd_fabric.messenger.link import Loss, Patience
from sglang_pd_fabric.messenger.links import Links
from sglang_pd_fabric.messenger.messages import Endpoint, Failure, Message

HOST = "127.0.0.1"
HANG = 60.0  # seconds: only ends a test that hangs
# QUICK where silence is waited for; elsewhere a busy machine must not be taken for a silent one.
QUICK = Patience(heartbeat=0.2, silence=3.0)
SLOW = Patience(heartbeat=0.2, silence=HANG)


def note(number: int, text: str = "") -> Message:
    """Any message will do; this one carries a number and a text."""
    return Failure(Endpoint(HOST, 1), 1, number, 1, 1, text)


class Mailbox:
    """What a `Links` has called, for whoever waits for it."""

    def __init__(self) -> None:
        self.received: list[Message] = []
        self.lost: list[tuple[Endpoint, Loss]] = []
        self.ticks = 0
        self._news = threading.Condition()

    def receive(self, message: Message) -> None:
        with self._news:
            self.received.append(message)
            self._news.notify_all()

    def lose(self, peer: Endpoint, loss: Loss) -> None:
        with self._news:
            self.lost.append((peer, loss))
            self._news.notify_all()

    def tick(self) -> None:
        with self._news:
            self.ticks += 1
            self._news.notify_all()

    def wait(self, reached: Callable[[Self], bool]) -> None:
        with self._news:
            assert self._news.wait_for(lambda: reached(self), HANG), "nothing comes"

    def numbers(self) -> list[int]:
        return [message.room for message in self.received if isinstance(message, Failure)]


@contextmanager
def near_end(patience: Patience = SLOW) -> Iterator[tuple[Links, Mailbox]]:
    """A control plane in this process."""
    links, mailbox = Links(HOST, patience=patience), Mailbox()
    links.start(mailbox.receive, mailbox.lose, mailbox.tick)
    try:
        yield links, mailbox
    finally:
        links.close()


def _serve(pipe: Connection, port: int) -> None:
    links, mailbox = Links(HOST, patience=SLOW, port=port), Mailbox()
    links.start(mailbox.receive, mailbox.lose, mailbox.tick)
    pipe.send(links.endpoint)
    with suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            if name == "send":
                pipe.send(links.send(*arguments))
            elif name == "wait_for":
                mailbox.wait(lambda box, count=arguments[0]: len(box.received) >= count)
                pipe.send(mailbox.numbers())
            elif name == "lost":
                pipe.send(mailbox.lost)
            elif name == "hold_gil":
                pipe.send(None)
                _hold_gil(arguments[0])
            elif name == "send_without_files":
                pipe.send(_without_files(lambda: links.send(*arguments)))  # noqa: B023
            elif name == "close":
                links.close()
                pipe.send(None)


def _hold_gil(seconds: int) -> None:
    """No other thread of this process runs Python meanwhile."""
    ctypes.PyDLL(None).sleep(seconds)


def _without_files(action: Callable[[], bool]) -> bool:
    """Does it while this process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    held: list[int] = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        return action()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class FarEnd:
    """The handle on the process."""

    def __init__(self, port: int = 0) -> None:
        context = mp.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, port), daemon=True)
        self.process.start()
        theirs.close()
        self.endpoint: Endpoint = self._answer()

    def ask(self, name: str, *arguments: object) -> Any:
        self._pipe.send((name, arguments))
        return self._answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def frozen(self) -> AbstractContextManager[None]:
        return frozen(self.process.pid)

    def _answer(self) -> Any:
        assert self._pipe.poll(HANG), "the process does not answer"
        return self._pipe.recv()


@contextmanager
def far_end(port: int = 0) -> Iterator[FarEnd]:
    far = FarEnd(port)
    try:
        yield far
    finally:
        far.kill()
