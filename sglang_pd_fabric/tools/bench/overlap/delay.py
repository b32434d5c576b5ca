"""From the store of a progress word to the first post that waited for it, beside a thread that holds the GIL.

One engine writes to itself over the null provider, one page for each layer, so that nothing but our own code
lies between the store and the post. The store's time is taken in C right before it, the post's by the I/O
thread's trace right before the provider is called. Where there are two cores or more, the I/O thread has the
first one for itself, as on a server that has a core for it; the forward pass, which sleeps between layers,
and the Python thread that holds the GIL share the others.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.progress import TraceEvent
from sglang_pd_fabric.tools.bench._native import ffi, lib
from sglang_pd_fabric.tools.bench.contenders.ours import copy_table
from sglang_pd_fabric.tools.bench.job import Job
from sglang_pd_fabric.tools.bench.overlap.pair import waking_store
from sglang_pd_fabric.tools.bench.overlap.readings import Delays, quantiles
from sglang_pd_fabric.tools.bench.own_cost import null_engine, null_profile, to_itself
from sglang_pd_fabric.tools.bench.workload import draw

SPIN_LAYER_NS = 100_000
SLEEP_LAYER_NS = 250_000  # longer than the I/O thread spins, so that most stores have to wake it
SLEEP_AFTER_S = 50e-6
SLEEPING_SHARE = 10  # one sample asleep for so many that spin
EVENTS_A_LAYER = 4  # step, post, done, and one to spare


def measure(job: Job) -> Delays:
    """``job.repetitions`` samples of a thread that spins, a tenth of that of one that sleeps."""
    cores = sorted(os.sched_getaffinity(0))
    own = cores[:1] if len(cores) > 1 else []
    word = np.zeros(1, np.uint64)
    with _engine(job, own, gate_spin=math.inf, progress_word=word.ctypes.data) as engine, _held_gil(cores):
        target = ffi.cast("void *", word.ctypes.data)
        store = ffi.addressof(lib, "spb_store_word")
        spinning = _sample(engine, job, store, target, SPIN_LAYER_NS, job.repetitions)
    with _engine(job, own, gate_spin=SLEEP_AFTER_S) as engine, _held_gil(cores):
        count = max(1, job.repetitions // SLEEPING_SHARE)
        sleeping = _sample(engine, job, *waking_store(engine), SLEEP_LAYER_NS, count)
    return Delays(quantiles(spinning), quantiles(sleeping))


@contextmanager
def _engine(job: Job, cpus: Sequence[int], **options: float) -> Iterator[Engine]:
    trace = EVENTS_A_LAYER * job.shape.layers
    with null_engine(null_profile(job.transport), trace=trace, cpus=cpus, **options) as engine:
        yield engine


@contextmanager
def _held_gil(cores: Sequence[int]) -> Iterator[None]:
    """A thread that holds the GIL, and gives it up only when it must, beside the calling thread."""
    held = True

    def hold() -> None:
        while held:
            sum(range(10_000))

    os.sched_setaffinity(0, cores[1:] or cores)
    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    try:
        yield
    finally:
        held = False
        thread.join()
        os.sched_setaffinity(0, cores)


def _sample(engine: Engine, job: Job, store: object, target: object, layer_ns: int, count: int) -> list[int]:
    layers = job.shape.layers
    peer, region = to_itself(engine, job.shape.buffer_bytes)
    table, pages = copy_table(job.shape, region), draw(job.shape, job.seed, 0)
    table["after"] = np.arange(1, layers + 1)
    transfer = engine.open_transfer(peer, 0, engine.slot_generation(0))
    stamps, unused = np.zeros(layers, np.uint64), ffi.new("uint64_t *")
    room = ffi.from_buffer("uint64_t[]", stamps, require_writable=True)
    delays: list[int] = []
    for forward in itertools.count(1):
        transfer.submit(table, pages.src, pages.dst, forward)
        lib.spb_forward_run(store, target, forward, layers, layer_ns, unused, room, unused)
        while not transfer.status().quiet:
            pass
        delays += post_delays(engine.take_trace(), stamps.tolist())
        if len(delays) >= count:
            break
    lost = engine.stats().trace_lost
    if lost:
        raise RuntimeError(f"the trace had no room for {lost} events")
    transfer.release()
    peer.remove()
    return delays[:count]


def post_delays(events: Sequence[TraceEvent], stamps: Sequence[int]) -> list[int]:
    """Nanoseconds from each layer's stamp to its first post.

    Layers that are done when the I/O thread looks go together: a post holds pages of layers up to its own.

    Args:
        events: of one forward pass with a page for each layer, oldest first.
        stamps: when each layer's word was stored, shape ``[layers]``.

    Raises:
        ValueError: a layer was never posted.
    """
    delays: list[int] = []
    for event in events:
        if event.kind == "post":
            delays += [event.ns - stamp for stamp in stamps[len(delays) : event.after]]
    if len(delays) < len(stamps):
        raise ValueError(f"{len(delays)} of {len(stamps)} layers were posted")
    return delays
