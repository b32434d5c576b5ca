"""`sglang-pd-fabric bench registration`: what registering a pool costs, through us and by the bare call.

tcp and shm only note a region down, whatever its size. What takes seconds on a real NIC is to pin its pages,
so provider ``pin`` is there as well: a libfabric without a network (``native/null.c``) that locks the pages
of each region. All that is compared is registered in turn, in one process, over the same memory.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sglang_pd_fabric.fabric._core import ffi as core_ffi
from sglang_pd_fabric.fabric._core import lib as core
from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import Library, check, open_library
from sglang_pd_fabric.fabric.memory import HostMemory
from sglang_pd_fabric.fabric.profiles import PROFILES, Profile
from sglang_pd_fabric.fabric.registration import Progress
from sglang_pd_fabric.settings import SettingError, load_settings
from sglang_pd_fabric.tools.bench import _native
from sglang_pd_fabric.tools.bench.options import add_list

PURPOSE = "measure how long registering a pool takes, against the bare fi_mr_reg loop"
PROVIDERS = ("tcp", "shm", "pin")
BUFFERS = 122  # K and V of 61 layers
PAGE = mmap.PAGESIZE
LOOPBACK = "127.0.0.1"


class Record(NamedTuple):
    """One contender over one provider: medians over the rounds."""

    engine: str  # ours or raw
    transport: str
    gigabytes: float
    buffers: int
    seconds: float
    gb_per_s: float


class Pool:
    """Memory of a process that has been touched, as buffers of equal size."""

    def __init__(self, nbytes: int, buffers: int) -> None:
        each = max(1, nbytes // buffers // PAGE) * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        self._mapping = mmap.mmap(-1, each * buffers, flags=flags)
        start = np.frombuffer(self._mapping, np.uint8).ctypes.data
        self.nbytes = each * buffers
        self.memories = [HostMemory(start + number * each, each) for number in range(buffers)]


class Ours:
    """Our engine, as a server uses it."""

    def __init__(self, library: Library, profile: Profile, progress: Callable[[Progress], None]) -> None:
        self._engine = Engine(library, profile, sources=[LOOPBACK if profile.binds_host else None])
        self._progress = progress

    def register(self, pool: Pool) -> float:
        """Seconds for all of the pool; it is closed again."""
        start = time.perf_counter()
        regions = self._engine.register_all(pool.memories, progress=self._progress)
        seconds = time.perf_counter() - start
        self._engine.unregister(regions[0])
        return seconds

    def close(self) -> None:
        self._engine.close()


class Raw:
    """The bare call in a loop, in C."""

    def __init__(self, library: Library, profile: Profile) -> None:
        out, self._error = _native.ffi.new("spb_raw **"), _native.ffi.new("char[]", 256)
        self._first = np.zeros(PAGE, np.uint8)
        source = LOOPBACK.encode() if profile.binds_host else _native.ffi.NULL
        address = _native.ffi.cast("void *", self._first.ctypes.data)
        names = library.path.encode(), profile.provider.encode()
        self._check(_native.lib.spb_raw_open(*names, source, address, PAGE, out, self._error))
        self._raw = out[0]

    def register(self, pool: Pool) -> float:
        """Seconds for all of the pool; it is closed again."""
        addresses = [memory.address for memory in pool.memories]
        sizes = [memory.nbytes for memory in pool.memories]
        ns = _native.ffi.new("uint64_t *")
        self._check(_native.lib.spb_raw_register(self._raw, addresses, sizes, len(sizes), ns, self._error))
        return float(ns[0]) / 1e9

    def close(self) -> None:
        _native.lib.spb_raw_close(self._raw)

    def _check(self, code: int) -> None:
        if code:
            raise FabricError(f"bare libfabric: {_native.ffi.string(self._error).decode()}")


def profile_and_library(provider: str, library: Library) -> tuple[Profile, Library]:
    """What to open for a provider of ``PROVIDERS``; ``pin`` is no libfabric of this machine.

    Raises:
        FabricError: the native part of the bench cannot be opened.
    """
    if provider != "pin":
        return PROFILES[provider], library
    out, error = core_ffi.new("spf_library **"), core_ffi.new("spf_error *")
    check(core.spf_library_open(_native.__file__.encode(), out, error), error)
    pin = Profile(
        name="pin",
        provider="pin",
        binds_host=False,
        wait_fd=False,
        segments=1,
        write_bytes=1 << 20,
        window=64,
        peer_window=32,
        single_host=False,
        device_driver="",  # it locks what it registers
    )
    return pin, Library(out[0], _native.__file__, "bench")


def measure(provider: str, library: Library, pool: Pool, rounds: int, show: Show) -> list[Record]:
    """Both contenders in turn, as often as there are rounds.

    Raises:
        FabricError: the provider cannot be opened, or refuses the memory.
    """
    profile, library = profile_and_library(provider, library)
    raw, ours = Raw(library, profile), Ours(library, profile, show.progress)
    taken: dict[str, list[float]] = {"raw": [], "ours": []}
    try:
        for number in range(rounds):
            show.begin(f"{provider}, round {number + 1} of {rounds}")
            turn: Sequence[Raw | Ours] = (raw, ours) if number % 2 == 0 else (ours, raw)
            for contender in turn:
                taken["raw" if contender is raw else "ours"].append(contender.register(pool))
    finally:
        ours.close()
        raw.close()
    return [_record(name, provider, pool, seconds) for name, seconds in taken.items()]


def _record(engine: str, provider: str, pool: Pool, seconds: list[float]) -> Record:
    median = statistics.median(seconds)
    gigabytes = pool.nbytes / 1e9
    return Record(engine, provider, gigabytes, len(pool.memories), median, gigabytes / median)


class Show:
    """Progress on a terminal: one line that is written over. Elsewhere one line for each round."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._text = ""

    def begin(self, text: str) -> None:
        self._text = text
        if not self._stream.isatty():
            print(text, file=self._stream, flush=True)

    def progress(self, now: Progress) -> None:
        if self._stream.isatty():
            share = now.bytes_done / now.bytes_total
            bar = "#" * round(30 * share)
            self._stream.write(
                f"\r{self._text} [{bar:30s}] {now.bytes_done / 1e9:.1f} of {now.bytes_total / 1e9:.1f} GB"
                f" in {now.seconds:.2f} s "
            )
            self._stream.flush()

    def end(self) -> None:
        if self._stream.isatty():
            self._stream.write("\n")


def table(records: Sequence[Record]) -> str:
    """Both contenders of each provider beside each other, and what we cost more."""
    lines = [f"{'provider':10s}{'raw s':>12s}{'ours s':>12s}{'ours/raw':>10s}{'more, us':>11s}"]
    seconds = {(record.transport, record.engine): record.seconds for record in records}
    for provider in dict.fromkeys(record.transport for record in records):
        raw, ours = seconds[provider, "raw"], seconds[provider, "ours"]
        lines.append(f"{provider:10s}{raw:12.6f}{ours:12.6f}{ours / raw:10.3f}{(ours - raw) * 1e6:11.0f}")
    return "\n".join(lines)


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        number = kind(text)
        if number <= 0:
            raise argparse.ArgumentTypeError(f"{text} is too small")
        return number

    return parse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    add = parser.add_argument
    add("--gigabytes", type=_positive(float), default=1.0, metavar="N", help="size of the pool (default: 1)")
    add("--buffers", type=_positive(int), default=BUFFERS, metavar="N", help=f"in it (default: {BUFFERS})")
    add_list(parser, "--providers", PROVIDERS, list(PROVIDERS), "; pin locks pages, as a NIC does")
    add("--rounds", type=_positive(int), default=5, metavar="N", help="median of so many (default: 5)")
    add("--json", type=Path, metavar="FILE", help="write the records")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    show = Show(sys.stderr)
    records: list[Record] = []
    try:
        library = open_library(load_settings().libfabric or None)
        pool = Pool(round(options.gigabytes * 1e9), options.buffers)
        print(f"{pool.nbytes / 1e9:.3g} GB in {len(pool.memories)} buffers, {options.rounds} rounds")
        for provider in options.providers:
            records += measure(provider, library, pool, options.rounds, show)
            show.end()
    except (FabricError, SettingError) as error:
        print(error, file=sys.stderr)
        return 1
    print(table(records))
    if options.json:
        options.json.write_text(json.dumps([record._asdict() for record in records], indent=1) + "\n")
    return 0
