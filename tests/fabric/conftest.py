"""Every test of this folder runs with each libfabric of this machine, over tcp and, from 2.0 on, over shm.

``world`` is one such pair. ``pair`` is a sender and a receiver in it that many tests share; a test that
harms a process starts its own with ``world.node``.
"""

import ast
import ctypes.util
import functools
import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from node import Node, Spec, pattern

from sglang_pd_fabric.fabric.library import SONAME, candidates
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.fabric.transfer import CopyTable

REGION = 64 << 20


def libraries() -> dict[str, str]:
    """Origin and path of the libfabrics of this machine."""
    return {
        candidate.origin: candidate.path
        for candidate in candidates(None)
        if (ctypes.util.find_library("fabric") if candidate.path == SONAME else Path(candidate.path).exists())
    }


@functools.cache
def version_of(library: str) -> tuple[int, int]:
    """Found out in another process: pytest's own never loads libfabric."""
    code = "import sys, sglang_pd_fabric.fabric.library as l; print(l.open_library(sys.argv[1]).version)"
    shown = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True, check=True)
    major, minor = ast.literal_eval(shown.stdout)
    return major, minor


WORLDS = [
    pytest.param((library, provider), id=f"{origin.split()[0]}-{provider}")
    for origin, library in libraries().items()
    for provider in ("tcp", "shm")
    if version_of(library) >= PROFILES[provider].minimum
]


def nightly(*values: object) -> Any:
    """Parameters that the default run leaves to the nightly one."""
    return pytest.param(*values, marks=pytest.mark.nightly)


@dataclass(frozen=True)
class World:
    library: str
    provider: str

    def node(
        self,
        nics: int = 1,
        profile: dict[str, int] | None = None,
        environ: dict[str, str] | None = None,
        own_shm: int = 0,
        **options: Any,
    ) -> Node:
        return Node(Spec(self.library, self.provider, nics, profile or {}, options, environ or {}, own_shm))

    @property
    def is_old(self) -> bool:
        """Whether its libfabric is older than 2.0."""
        return version_of(self.library) < (2, 0)

    def impatient(self) -> Node:
        """A node whose transfers fail after one second without progress."""
        return self.node(stall=1.0)


@pytest.fixture(scope="session", params=WORLDS)
def world(request: pytest.FixtureRequest) -> World:
    return World(*request.param)


@pytest.fixture(scope="session")
def closing_world(world: World) -> World:
    """A world in which an engine may close while others write to it."""
    skip_old(world.library, "it can crash when an endpoint closes in the middle of an arriving write")
    return world


def skip_old(library: str, reason: str) -> None:
    """For what is known of libfabric before 2.0 and not ours to mend."""
    version = version_of(library)
    if version < (2, 0):
        pytest.skip(f"libfabric {version[0]}.{version[1]}: {reason}")


@dataclass
class Pair:
    """A sender and a receiver, each with one region of 64 MiB; the sender's has the bytes of seed 1."""

    sender: Node
    receiver: Node
    peer: int
    source: npt.NDArray[np.uint8] = field(default_factory=lambda: pattern(REGION, 1))
    slots: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @classmethod
    def join(cls, sender: Node, receiver: Node) -> "Pair":
        sender.ask("allocate", REGION, 1)
        receiver.ask("allocate", REGION)
        return cls(sender, receiver, sender.ask("add_peer", receiver.ask("invite")))

    def slot(self) -> int:
        """One that no test has used."""
        return next(self.slots)

    def deliver(self, table: CopyTable, src: Any, dst: Any) -> npt.NDArray[np.uint8]:
        """Sends one plan into cleared memory; the receiver's bytes at the moment the count is full."""
        extent = self.extent(table, dst)
        self.receiver.ask("clear", 0, extent)
        slot, units = self.slot(), len(table) * len(src)
        pages = np.asarray(src, np.uint32), np.asarray(dst, np.uint32)
        transfer = self.sender.ask("send", self.peer, slot, table, *pages)
        seen, got = self.receiver.ask("read_when_full", slot, units, 0, extent)
        assert seen == units
        status = self.sender.ask("finish", transfer)
        assert (status.error, status.units_done) == (0, units)
        assert status.bytes_done == int(table["bytes"].sum()) * len(src)
        self.sender.ask("release", transfer)
        return got

    @staticmethod
    def extent(table: CopyTable, dst: Any) -> int:
        """How much of the region we look at: all that the plan may write, and some behind it."""
        ends = table["dst_offset"] + table["dst_stride"] * np.uint64(max(dst)) + table["bytes"]
        return min(REGION, int(ends.max()) + 10_000)

    def expected(self, table: CopyTable, src: Any, dst: Any) -> npt.NDArray[np.uint8]:
        """What the plan means, page by page."""
        want = np.zeros(self.extent(table, dst), np.uint8)
        for row in table:
            nbytes = int(row["bytes"])
            for here, there in zip(src, dst, strict=True):
                start = int(row["src_offset"]) + int(row["src_stride"]) * int(here)
                to = int(row["dst_offset"]) + int(row["dst_stride"]) * int(there)
                want[to : to + nbytes] = self.source[start : start + nbytes]
        return want


@pytest.fixture(scope="session")
def pair(world: World) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair.join(stack.enter_context(world.node()), stack.enter_context(world.node()))


@pytest.fixture
def fresh_pair(world: World) -> Iterator[Pair]:
    with world.node() as sender, world.node() as receiver:
        yield Pair.join(sender, receiver)


def pytest_sessionstart() -> None:
    if not WORLDS:
        pytest.exit("the tests need a libfabric (1.17 or newer): none was found", returncode=1)
