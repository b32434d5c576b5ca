"""Our engine, used as the messenger uses it: a slot on the receiver, a plan for all layers on the sender."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.fabric.mapped import Share, SharedMemory, SharedRegion
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.fabric.transfer import COPY, CopyTable
from sglang_pd_fabric.tools.bench.contenders.base import Target, Writer
from sglang_pd_fabric.tools.bench.job import LIMIT_S, Job
from sglang_pd_fabric.tools.bench.workload import Buffer, Draw, Shape, filled, touched

LOOPBACK = "127.0.0.1"
UNDER_MAPPED = "tcp"  # what the engine opens, though no page takes that way
# Between two looks at a counter. SGLang's scheduler looks once a step; we must not use up a core.
LOOK_S = 2e-4
SETTLE_S = 2e-3


def copy_table(shape: Shape, src_region: int, dst_region: int = 0) -> CopyTable:
    """One row for each layer's buffer."""
    table = np.zeros(shape.layers, COPY)
    starts = np.arange(shape.layers, dtype=np.uint64) * np.uint64(shape.slots * shape.page_bytes)
    table["src_region"], table["dst_region"] = src_region, dst_region
    table["src_offset"] = table["dst_offset"] = starts
    table["src_stride"] = table["dst_stride"] = table["bytes"] = shape.page_bytes
    return table


def open_engine(job: Job, *, share_slots: bool = False) -> Engine:
    profile = PROFILES[UNDER_MAPPED if job.transport == "mapped" else job.transport]
    sources = (LOOPBACK if profile.binds_host else None,)
    library = open_library(job.libfabric)
    return Engine(library, profile, sources=sources, slots=1024, share_slots=share_slots)


def settle(engine: Engine) -> None:
    """Until the I/O thread sleeps. The kernel knows what a thread has used only when it does not run."""
    slept = engine.stats().sleeps
    while engine.stats().sleeps == slept:
        time.sleep(SETTLE_S)


class OurTarget(Target):
    def __init__(self, job: Job) -> None:
        self._engine = open_engine(job, share_slots=True)
        self._units = job.shape.writes
        self._slot = 0
        self.buffer: Buffer = touched(job.shape.buffer_bytes)
        self._region = self._engine.register(self.buffer.ctypes.data, self.buffer.nbytes, self.buffer)

    def invitation(self) -> tuple[Any, Any]:
        return [nic.address for nic in self._engine.nics], [self._region]

    @property
    def slots(self) -> Share:
        """Where a process of this host can read the counts."""
        assert self._engine.slot_share is not None
        return self._engine.slot_share

    def arm(self, repetition: int) -> int:
        self._slot = repetition
        return self._engine.slot_generation(repetition)

    def wait(self) -> int:
        limit = time.monotonic() + LIMIT_S
        while self._engine.slot_units(self._slot) < self._units:
            if time.monotonic() > limit:
                raise TimeoutError(f"{self._engine.slot_units(self._slot)} of {self._units} units came")
            time.sleep(LOOK_S)
        return time.monotonic_ns()

    def settle(self) -> None:
        settle(self._engine)

    def close(self) -> None:
        self._engine.close()


class MappedTarget(OurTarget):
    """One whose memory and slots the writer's engine maps."""

    def __init__(self, job: Job) -> None:
        self._engine = open_engine(job, share_slots=True)
        self._units = job.shape.writes
        self._slot = 0
        self._memory = SharedMemory.create(job.shape.buffer_bytes)
        self.buffer = self._memory.array()
        self.buffer[:] = 0

    def invitation(self) -> tuple[Any, Any]:
        return self.slots, [SharedRegion(self._memory.share, 0, self._memory.nbytes)]


class OurWriter(Writer):
    def __init__(self, job: Job, invitation: Any) -> None:
        self._engine = open_engine(job)
        self._buffer = filled(job.shape)
        region = self._engine.register(self._buffer.ctypes.data, self._buffer.nbytes, self._buffer)
        join = self._engine.map_peer if job.transport == "mapped" else self._engine.add_peer
        self._peer = join(*invitation)
        self._copies = copy_table(job.shape, region.index)

    def prepare(self, pages: Draw) -> Draw:
        return pages

    def write(self, prepared: Draw, repetition: int, token: int) -> None:
        transfer = self._engine.open_transfer(self._peer, repetition, token)
        transfer.submit(self._copies, prepared.src, prepared.dst)
        while not (status := transfer.status()).quiet:
            time.sleep(LOOK_S)
        transfer.release()
        if status.error:
            raise RuntimeError(f"the transfer failed: {status}")

    def settle(self) -> None:
        settle(self._engine)

    def close(self) -> None:
        self._engine.close()


def make_target(job: Job) -> Target:
    return MappedTarget(job) if job.transport == "mapped" else OurTarget(job)


def make_writer(job: Job, invitation: Any) -> Writer:
    return OurWriter(job, invitation)
