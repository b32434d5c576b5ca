"""What our own code costs: the engine over ``native/null.c``, a libfabric in which a write just ends.

One engine writes to itself, so that its I/O thread does the work of both sides for every page: cut the
plan, keep the ledger, post, poll, retire, count the immediate. The null provider's own few nanoseconds per
write are included. Memory is never touched, so caches are warmer than in a real transfer.
"""

from __future__ import annotations

import dataclasses
import statistics
import time

import numpy as np

from sglang_pd_fabric.fabric.engine import Engine, Peer
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.tools.bench import _native
from sglang_pd_fabric.tools.bench.contenders.ours import LOOK_S, copy_table
from sglang_pd_fabric.tools.bench.job import Job, OwnCost, Submit
from sglang_pd_fabric.tools.bench.workload import Shape, draw

AT_LEAST_PAGES = 200_000  # in flight at once: what the start and the end cost does not count then
LAYER_PAGES = (1, 64, 1024, 4096)
SUBMITS = 200
QUEUED = 4  # plans that keep the I/O thread awake
BASE = 1 << 40  # an address that nobody reads


def measure(job: Job) -> OwnCost:
    """Per page for the job's shape with its transport's profile, and per ``submit`` of one layer."""
    profile = dataclasses.replace(
        PROFILES[job.transport], provider="null", wait_fd=False, binds_host=False, single_host=False
    )
    engine = Engine(open_library(_native.__file__), profile)
    try:
        if engine.library.path != _native.__file__:
            raise RuntimeError(f"{engine.library.path} was loaded before the null provider")
        per_page = statistics.median(_per_page(engine, job, number) for number in range(job.repetitions))
        submit = {pages: _submit_us(engine, pages) for pages in LAYER_PAGES}
    finally:
        engine.close()
    return OwnCost(per_page, submit)


def _to_itself(engine: Engine, nbytes: int) -> tuple[Peer, int]:
    region = engine.register(BASE, nbytes)
    return engine.add_peer([nic.address for nic in engine.nics], [region]), region.index


def _per_page(engine: Engine, job: Job, number: int) -> float:
    shape = job.shape
    peer, region = _to_itself(engine, shape.buffer_bytes)
    table, pages = copy_table(shape, region), draw(shape, job.seed, number)
    plans = -(-AT_LEAST_PAGES // shape.writes)
    slot = number
    transfer = engine.open_transfer(peer, slot, engine.slot_generation(slot))
    start = time.perf_counter()
    for _ in range(plans):
        transfer.submit(table, pages.src, pages.dst)
    while not transfer.status().quiet or engine.slot_units(slot) < plans * shape.writes:
        time.sleep(LOOK_S)
    seconds = time.perf_counter() - start
    transfer.release()
    peer.remove()
    return seconds / (plans * shape.writes) * 1e6


def _submit_us(engine: Engine, pages: int) -> Submit:
    """Medians over calls, each for one layer, with the I/O thread asleep before it and with it at work."""
    shape = Shape("layer", 1, pages, 16_384)
    peer, region = _to_itself(engine, shape.buffer_bytes)
    table, drawn = copy_table(shape, region), draw(shape, 1, pages)
    transfer = engine.open_transfer(peer, 0, 1)
    src, dst = drawn.src.astype(np.int32), drawn.dst  # as they come from SGLang and from the peer

    def timed() -> float:
        start = time.perf_counter()
        transfer.submit(table, src, dst)
        return (time.perf_counter() - start) * 1e6

    def asleep() -> float:
        while not transfer.status().quiet:
            pass
        slept = engine.stats().sleeps
        while engine.stats().sleeps == slept:
            pass  # not asleep ourselves: that would measure our caches
        return timed()

    def awake() -> float:
        while (status := transfer.status()).plans_submitted - status.plans_finished > QUEUED:
            pass
        return timed()

    taken = [asleep() for _ in range(SUBMITS)], [awake() for _ in range(SUBMITS)]
    transfer.release()
    peer.remove()
    return Submit(*map(statistics.median, taken))
