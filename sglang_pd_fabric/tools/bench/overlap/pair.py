"""Overlap between two processes: one engine sends while a forward pass without a model runs, one receives.

Runs inside the sender's process (``child.py`` starts it); the receiver's is spawned from here, and only its
I/O thread is at work. The sender maps the receiver's completion slots, so that it reads what the receiver has
counted at the very moment when the pass ends, with one load and without a message. The engine is set as that
of a server on the CPU: whoever moves the progress word wakes it.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sglang_pd_fabric.fabric._core import ffi as core_ffi
from sglang_pd_fabric.fabric._core import lib as core
from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.mapped import attach
from sglang_pd_fabric.fabric.transfer import Transfer
from sglang_pd_fabric.tools.bench._native import ffi, lib
from sglang_pd_fabric.tools.bench.contenders.ours import OurTarget, copy_table, make_target, open_engine
from sglang_pd_fabric.tools.bench.job import LIMIT_S, Job
from sglang_pd_fabric.tools.bench.overlap.readings import Reading, Way
from sglang_pd_fabric.tools.bench.target import hear, target_process
from sglang_pd_fabric.tools.bench.workload import draw, filled, wrong_pages

ALONE = 3  # latest transfers without a forward pass, that tell how long the next pass has to be
LIMIT_NS = round(LIMIT_S * 1e9)


def measure(job: Job) -> list[Reading]:
    """Runs the job's repetitions.

    Raises:
        RuntimeError: a page does not hold what it should, or a transfer did not end.
    """
    with target_process(_target, job) as pipe:
        slots, generations, invitation = hear(pipe)
        sender = _Sender(job, slots, generations, invitation)
        sender.alone()  # nobody counts the first one
        latest = deque((sender.alone() for _ in range(ALONE)), maxlen=ALONE)
        readings = [_repeat(sender, latest, job.pass_ratio, number) for number in range(job.repetitions)]
        pipe.send(sender.transfers - 1)
        wrong = hear(pipe)
        if wrong:
            raise RuntimeError(f"{wrong} of {job.shape.writes} pages hold wrong data")
        sender.engine.close()
        pipe.send(None)
    return readings


def _repeat(sender: _Sender, latest: deque[int], ratio: float, number: int) -> Reading:
    """A transfer alone, then both ways with a pass longer by the ratio; they take turns to be first."""
    latest.append(sender.alone())
    layer_ns = max(1, round(statistics.median(latest) * ratio / sender.layers))
    if number % 2:
        chunkwise, layerwise = sender.chunkwise(layer_ns), sender.layerwise(layer_ns)
    else:
        layerwise, chunkwise = sender.layerwise(layer_ns), sender.chunkwise(layer_ns)
    return Reading(latest[-1], layer_ns * sender.layers, layerwise, chunkwise)


class _Sender:
    """The sending engine, with a forward pass of its own. Each transfer has its own slot and pages."""

    def __init__(self, job: Job, slots: Any, generations: list[int], invitation: Any) -> None:
        self.engine = open_engine(job)
        self.layers = job.shape.layers
        self.transfers = 0
        self._job = job
        self._generations = generations
        self._buffer = filled(job.shape)
        region = self.engine.register(self._buffer.ctypes.data, self._buffer.nbytes, self._buffer)
        join = self.engine.map_peer if job.transport == "mapped" else self.engine.add_peer
        self._peer = join(*invitation)
        self._copies = copy_table(job.shape, region.index)
        self._copies["after"] = np.arange(1, self.layers + 1)
        self._slots = attach(slots)
        self._stamps = np.zeros(self.layers, np.uint64)
        self._ns = ffi.new("uint64_t *")

    def alone(self) -> int:
        """Nanoseconds of a transfer that waits for nothing."""
        transfer = self._open()
        start = time.monotonic_ns()
        self._submit(transfer, 0)
        return self._end(transfer) - start

    def layerwise(self, layer_ns: int) -> Way:
        """The pages are handed over before the forward pass: each layer goes when it is done."""
        transfer = self._open()
        self._submit(transfer, self.transfers)
        hidden, ended = self._forward(layer_ns)
        return Way(hidden, self._end(transfer) - ended)

    def chunkwise(self, layer_ns: int) -> Way:
        """The same pages are handed over when the forward pass has ended."""
        transfer = self._open()
        hidden, ended = self._forward(layer_ns)
        self._submit(transfer, 0)
        return Way(hidden, self._end(transfer) - ended)

    def _open(self) -> Transfer:
        slot = self.transfers
        self.transfers += 1
        self._counter = ffi.cast("uint64_t *", self._slots.address + slot * ffi.sizeof("uint64_t"))
        return self.engine.open_transfer(self._peer, slot, self._generations[slot])

    def _submit(self, transfer: Transfer, forward: int) -> None:
        pages = draw(self._job.shape, self._job.seed, self.transfers - 1)
        transfer.submit(self._copies, pages.src, pages.dst, forward)

    def _forward(self, layer_ns: int) -> tuple[int, int]:
        """What the receiver had counted when it ended, and when that was."""
        store, target = waking_store(self.engine)
        stamps = ffi.from_buffer("uint64_t[]", self._stamps, require_writable=True)
        lib.spb_forward_run(
            store, target, self.transfers, self.layers, layer_ns, self._counter, stamps, self._ns
        )
        return self._ns[0] & 0xFFFF_FFFF, int(self._stamps[-1])

    def _end(self, transfer: Transfer) -> int:
        """When the receiver had counted everything."""
        full = self._generations[self.transfers - 1] << 32 | self._job.shape.writes
        late = lib.spb_await(self._counter, full, LIMIT_NS, self._ns)
        status = transfer.status()
        transfer.release()
        if late or status.error:
            raise RuntimeError(
                f"{self._counter[0] & 0xFFFF_FFFF} of {self._job.shape.writes} units: {status}"
            )
        return int(self._ns[0])


def waking_store(engine: Engine) -> tuple[Any, Any]:
    """What moves an engine's progress word and wakes its I/O thread: a function for C, and its argument."""
    function = core_ffi.cast("uintptr_t", core_ffi.addressof(core, "spf_progress_store"))
    handle = core_ffi.cast("uintptr_t", engine.handle)
    return ffi.cast("spb_store *", int(function)), ffi.cast("void *", int(handle))


def _target(pipe: Connection, job: Job) -> None:
    target = make_target(job)
    assert isinstance(target, OurTarget)
    count = ALONE + 1 + 3 * job.repetitions
    pipe.send((target.slots, [target.arm(slot) for slot in range(count)], target.invitation()))
    last = draw(job.shape, job.seed, pipe.recv())
    assert target.buffer is not None
    pipe.send(wrong_pages(job.shape, target.buffer, last))
    pipe.recv()
    target.close()
