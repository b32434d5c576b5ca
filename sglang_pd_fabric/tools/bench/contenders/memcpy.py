"""The native memcpy loop over the same page lists: what the machine can do without any transport.

Both buffers belong to one process. Over ``auto`` they are private memory, which the kernel serves with its
largest pages; over ``mapped`` the target is what a mapped pool is, a memfd, which mostly has the smallest.
"""

from __future__ import annotations

from typing import NamedTuple

from sglang_pd_fabric.fabric.mapped import SharedMemory
from sglang_pd_fabric.tools.bench._native import ffi, lib
from sglang_pd_fabric.tools.bench.contenders.base import Target, Writer
from sglang_pd_fabric.tools.bench.job import Job
from sglang_pd_fabric.tools.bench.workload import Buffer, Draw, Offsets, filled, offsets, touched


class Lists(NamedTuple):
    to: Offsets
    source: Offsets


def _memory(job: Job) -> Buffer:
    if job.transport == "auto":
        return touched(job.shape.buffer_bytes)
    buffer = SharedMemory.create(job.shape.buffer_bytes).array()
    buffer[:] = 0
    return buffer


class NoTarget(Target):
    def invitation(self) -> None:
        return None


class MemcpyWriter(Writer):
    def __init__(self, job: Job) -> None:
        self._shape = job.shape
        self._source = filled(job.shape)
        self.landed: Buffer = _memory(job)

    def prepare(self, pages: Draw) -> Lists:
        return Lists(offsets(self._shape, pages.dst), offsets(self._shape, pages.src))

    def write(self, prepared: Lists, repetition: int, token: object) -> None:  # noqa: ARG002
        lib.spb_copy_pages(
            ffi.from_buffer("uint8_t[]", self.landed),
            ffi.from_buffer("uint8_t[]", self._source),
            ffi.from_buffer("uint64_t[]", prepared.to),
            ffi.from_buffer("uint64_t[]", prepared.source),
            len(prepared.to),
            self._shape.page_bytes,
        )


def make_target(job: Job) -> Target:  # noqa: ARG001  # every contender has this
    return NoTarget()


def make_writer(job: Job, invitation: None) -> Writer:  # noqa: ARG001
    return MemcpyWriter(job)
