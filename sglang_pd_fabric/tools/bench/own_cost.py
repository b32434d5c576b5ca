"""What our own code costs: the engine over ``native/null.c``, a libfabric in which a write just ends.

One engine writes to itself, so that its I/O thread does the work of both sides for every page: cut the
plan, keep the ledger, post, poll, retire, count the immediate. The null provider's own few nanoseconds per
write are included. Memory is never touched, so caches are warmer than in a real transfer; of a mapped peer
each page has 8 bytes that stay in the cache.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from sglang_pd_fabric.fabric.engine import Engine, Peer
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.fabric.mapped import SharedMemory, SharedRegion
from sglang_pd_fabric.fabric.profiles import PROFILES, Profile
from sglang_pd_fabric.fabric.transfer import Transfer
from sglang_pd_fabric.tools.bench import _native
from sglang_pd_fabric.tools.bench._native import lib
from sglang_pd_fabric.tools.bench.contenders.ours import LOOK_S, UNDER_MAPPED, copy_table
from sglang_pd_fabric.tools.bench.job import Job, OwnCost, Stages, Submit, Wake
from sglang_pd_fabric.tools.bench.workload import Shape, draw

AT_LEAST_PAGES = 200_000  # in flight at once: what the start and the end cost does not count then
RUNS = 15  # of a few milliseconds each
LAYER_PAGES = (1, 64, 1024, 4096)
SUBMITS = 200
WAKES = 500
QUEUED = 4  # plans that keep the I/O thread awake
BASE = 1 << 40  # an address that nobody reads
Join = Callable[[Engine, int], tuple[Peer, int]]  # makes a peer of the engine itself, and a region
WORD = 8  # bytes of a page that is copied all the same


class _Run(NamedTuple):
    """Microseconds for a page: by the caller's clock, and what the null provider saw between its calls."""

    total: float
    posting: float
    completing: float
    counting: float


def measure(job: Job) -> OwnCost:
    """Per page for the job's shape with its transport's profile, and per ``submit`` of one layer."""
    mapped = job.transport == "mapped"
    profile = null_profile(job.transport)
    with null_engine(profile) as engine:
        join = _to_mapped_self if mapped else to_itself
        shape = job.shape._replace(page_bytes=WORD) if mapped else job.shape
        runs = [_run(engine, join, shape, job.seed, number) for number in range(RUNS)]
        submit = {pages: _submit_us(engine, pages) for pages in LAYER_PAGES}
        wake = _wake_us(engine)
        segments = engine.nics[0].segments
    stages = None
    if not mapped:
        with null_engine(dataclasses.replace(profile, segments=1)) as engine:
            single = [_run(engine, to_itself, shape, job.seed, number) for number in range(RUNS)]
        stages = _stages(runs, single, segments)
    return OwnCost(statistics.median(run.total for run in runs), submit, stages, wake)


def _stages(runs: list[_Run], single: list[_Run], segments: int) -> Stages:
    """Of the runs that other work disturbed least, for these are nanoseconds.

    Cutting costs for each page, posting for each write: two numbers of pages in a write tell them apart.
    """
    many, one = (min(run.posting for run in of) for of in (runs, single))
    cutting = min(many, max(0.0, (segments * many - one) / (segments - 1)))
    ends = min(run.completing for run in runs), min(run.counting for run in runs)
    return Stages(cutting, many - cutting, *ends)


def null_profile(transport: str) -> Profile:
    """A transport's profile over the null provider."""
    return dataclasses.replace(
        PROFILES[UNDER_MAPPED if transport == "mapped" else transport],
        provider="null",
        wait_fd=False,
        binds_host=False,
        single_host=False,
    )


@contextmanager
def null_engine(profile: Profile, **options: Any) -> Iterator[Engine]:
    """One at a time: the null provider has one queue. ``options`` are the engine's."""
    engine = Engine(open_library(_native.__file__), profile, share_slots=True, **options)
    try:
        if engine.library.path != _native.__file__:
            raise RuntimeError(f"{engine.library.path} was loaded before the null provider")
        yield engine
    finally:
        engine.close()


def to_itself(engine: Engine, nbytes: int) -> tuple[Peer, int]:
    """Makes a peer of the engine itself, with a region that nobody reads; the peer and the region."""
    region = engine.register(BASE, nbytes)
    return engine.add_peer([nic.address for nic in engine.nics], [region]), region.index


def _to_mapped_self(engine: Engine, nbytes: int) -> tuple[Peer, int]:
    assert engine.slot_share is not None
    memory = SharedMemory.create(nbytes)
    region = engine.register(memory.address, nbytes, memory)
    return engine.map_peer(engine.slot_share, [SharedRegion(memory.share, 0, nbytes)]), region.index


def _run(engine: Engine, join: Join, shape: Shape, seed: int, number: int) -> _Run:
    peer, region = join(engine, shape.buffer_bytes)
    table, pages = copy_table(shape, region), draw(shape, seed, number)
    plans = -(-AT_LEAST_PAGES // shape.writes)
    transfer = engine.open_transfer(peer, number, engine.slot_generation(number))
    _spent_us()
    start = time.perf_counter()
    for _ in range(plans):
        transfer.submit(table, pages.src, pages.dst)
    while not transfer.status().quiet or engine.slot_units(number) < plans * shape.writes:
        time.sleep(LOOK_S)
    taken = (time.perf_counter() - start) * 1e6, *_spent_us()
    transfer.release()
    peer.remove()
    return _Run(*(microseconds / (plans * shape.writes) for microseconds in taken))


def _spent_us() -> tuple[float, ...]:
    """What the stages took since the last call."""
    stages = lib.SPB_POSTING, lib.SPB_COMPLETING, lib.SPB_COUNTING
    return tuple(lib.spb_null_spent_ns(stage) / 1e3 for stage in stages)


@contextmanager
def _layer(engine: Engine, pages: int) -> Iterator[tuple[Transfer, Callable[[], object]]]:
    """A transfer, and a call that submits one layer to it, with page ids as SGLang and the peer give them."""
    shape = Shape("layer", 1, pages, 16_384)
    peer, region = to_itself(engine, shape.buffer_bytes)
    table, drawn = copy_table(shape, region), draw(shape, 1, pages)
    transfer = engine.open_transfer(peer, 0, 1)
    src, dst = drawn.src.astype(np.int32), drawn.dst
    yield transfer, lambda: transfer.submit(table, src, dst)
    transfer.release()
    peer.remove()


def _until_asleep(engine: Engine, transfer: Transfer) -> None:
    while not transfer.status().quiet:
        pass
    slept = engine.stats().sleeps
    while engine.stats().sleeps == slept:
        pass  # not asleep ourselves: that would measure our caches


def _submit_us(engine: Engine, pages: int) -> Submit:
    """Medians over calls, each for one layer, with the I/O thread asleep before it and with it at work."""
    with _layer(engine, pages) as (transfer, submit):

        def timed() -> float:
            start = time.perf_counter()
            submit()
            return (time.perf_counter() - start) * 1e6

        def asleep() -> float:
            _until_asleep(engine, transfer)
            return timed()

        def awake() -> float:
            while (status := transfer.status()).plans_submitted - status.plans_finished > QUEUED:
                pass
            return timed()

        taken = [asleep() for _ in range(SUBMITS)], [awake() for _ in range(SUBMITS)]
    return Submit(*map(statistics.median, taken))


def _wake_us(engine: Engine) -> Wake:
    """From a submit that has to wake the I/O thread to the first write."""
    delays = []
    with _layer(engine, 1) as (transfer, submit):
        for _ in range(WAKES):
            _until_asleep(engine, transfer)
            lib.spb_null_first_write_ns()
            start = time.monotonic_ns()
            submit()
            while not (posted := lib.spb_null_first_write_ns()):
                pass
            delays.append((posted - start) / 1e3)
    cuts = statistics.quantiles(delays, n=100)
    return Wake(cuts[49], cuts[98])
