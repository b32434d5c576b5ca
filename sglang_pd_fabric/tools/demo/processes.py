"""One child process: its command, its log file, its readiness and its certain end."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

POLL_SECONDS = 0.25
TERM_SECONDS = 8.0
TAIL_LINES = 25


class ServerError(RuntimeError):
    """A server did not start, or ended; the message carries the tail of its log."""


@dataclass(frozen=True)
class Spec:
    """What to run and how to see that it is ready."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    url: str
    health: str = "/health"


@dataclass
class Server:
    """A running child. It leads a process group of its own, so that stopping it leaves nothing behind."""

    spec: Spec
    log: Path
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, spec: Spec, log: Path) -> Server:
        """Start the child now; readiness is `wait_ready`'s business."""
        wrapped = (sys.executable, "-m", "sglang_pd_fabric.tools.demo.child", str(os.getpid()), *spec.command)
        with log.open("wb") as output:
            process = subprocess.Popen(
                wrapped,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **spec.env},
                start_new_session=True,
            )
        server = cls(spec, log, process)
        atexit.register(server.stop)
        return server

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def url(self) -> str:
        return self.spec.url

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        return self.process.poll() is None

    def ready(self) -> bool:
        """Ask once whether it serves; an end of the process is an error."""
        if not self.alive():
            raise ServerError(f"{self.name} ended with status {self.process.returncode}\n{self.tail()}")
        try:
            return httpx.get(self.url + self.spec.health, timeout=5).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def tail(self) -> str:
        """Return the end of its log, with the place of the whole of it."""
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join([f"--- last lines of {self.log}", *lines])

    def signal(self, number: int) -> None:
        """Send a signal to the child and all its descendants."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def family(self) -> list[int]:
        """Process ids of the child and all its descendants."""
        import psutil  # type: ignore[import-untyped]

        try:
            first = psutil.Process(self.pid)
            return [self.pid, *(each.pid for each in first.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """End the whole group as a crash would, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        atexit.unregister(self.stop)

    def stop(self) -> None:
        """End the whole group: politely, then by force."""
        stop_all([self])


def stop_all(servers: Sequence[Server]) -> None:
    """End several servers, which take their time for it together."""
    for server in servers:
        atexit.unregister(server.stop)
        server.signal(signal.SIGCONT)  # a stopped process would never see the next signal
        server.signal(signal.SIGTERM)
    deadline = time.monotonic() + TERM_SECONDS
    for server in servers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(max(0.0, deadline - time.monotonic()))
        server.signal(signal.SIGKILL)
        server.process.wait()


def wait_ready(servers: Sequence[Server], timeout: float, on_ready: Callable[[Server], None]) -> None:
    """Return when all serve; raise `ServerError` as soon as one ends or the time is over."""
    deadline = time.monotonic() + timeout
    waiting = list(servers)
    while waiting:
        for server in list(waiting):
            if server.ready():
                waiting.remove(server)
                on_ready(server)
        if not waiting:
            return
        if time.monotonic() > deadline:
            slow = waiting[0]
            raise ServerError(f"{slow.name} is not ready after {timeout:.0f} s\n{slow.tail()}")
        with contextlib.suppress(subprocess.TimeoutExpired):  # a pause that ends at once if the process does
            waiting[0].process.wait(POLL_SECONDS)
