"""Processes that stand still, and go on."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def freeze(pid: int) -> None:
    """Returns when no thread of it runs: on a busy machine they go on for a moment after the signal."""
    os.kill(pid, signal.SIGSTOP)
    while not _stands_still(pid):
        pass


def thaw(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


@contextmanager
def frozen(pid: int | None) -> Iterator[None]:
    """The process stands still."""
    assert pid is not None
    freeze(pid)
    try:
        yield
    finally:
        thaw(pid)


def _stands_still(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(each.read_text().rpartition(")")[2].split()[0] in "TZX" for each in threads)
