"""The bare libfabric loop of ``native/raw.c``: ``raw`` writes a page at a time, ``raw4`` four."""

from __future__ import annotations

from typing import Any, NamedTuple

from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.tools.bench._native import ffi, lib
from sglang_pd_fabric.tools.bench.contenders.base import Target, Writer
from sglang_pd_fabric.tools.bench.contenders.ours import LOOPBACK
from sglang_pd_fabric.tools.bench.job import LIMIT_S, Job
from sglang_pd_fabric.tools.bench.workload import Buffer, Draw, Offsets, Shape, filled, offsets, touched

WINDOW = 256
LIMIT_NS = int(LIMIT_S * 1e9)


class Invitation(NamedTuple):
    address: bytes
    base: int
    key: int


class Lists(NamedTuple):
    to: Offsets
    source: Offsets


class Loop:
    """One endpoint of the native loop over one buffer."""

    def __init__(self, job: Job, buffer: Buffer) -> None:
        profile = PROFILES[job.transport]
        source = LOOPBACK.encode() if profile.binds_host else ffi.NULL
        self.segments = 4 if job.engine == "raw4" else 1
        self._error = ffi.new("char[]", lib.SPB_ERROR_BYTES)
        out = ffi.new("spb_raw **")
        memory = ffi.cast("void *", buffer.ctypes.data)
        names = job.libfabric.encode(), profile.provider.encode(), source
        self.check(lib.spb_raw_open(*names, memory, buffer.nbytes, out, self._error))
        self._handle = out[0]

    def check(self, code: int) -> None:
        if code:
            raise RuntimeError(ffi.string(self._error).decode(errors="replace"))

    def invitation(self) -> Invitation:
        address, numbers = ffi.new("uint8_t[]", lib.SPB_ADDRESS_BYTES), ffi.new("uint64_t[2]")
        lib.spb_raw_invite(self._handle, address, numbers, numbers + 1)
        return Invitation(bytes(ffi.buffer(address)), numbers[0], numbers[1])

    def connect(self, to: Invitation) -> None:
        self.check(lib.spb_raw_connect(self._handle, to.address, to.base, to.key, self._error))

    def write(self, lists: Lists, page_bytes: int) -> None:
        self.check(
            lib.spb_raw_write(
                self._handle,
                ffi.from_buffer("uint64_t[]", lists.to),
                ffi.from_buffer("uint64_t[]", lists.source),
                len(lists.to),
                page_bytes,
                self.segments,
                WINDOW,
                LIMIT_NS,
                self._error,
            )
        )

    def receive(self, pages: int) -> int:
        end = ffi.new("uint64_t *")
        immediates = -(-pages // self.segments)
        self.check(lib.spb_raw_receive(self._handle, immediates, LIMIT_NS, end, self._error))
        return int(end[0])

    def close(self) -> None:
        lib.spb_raw_close(self._handle)


class RawTarget(Target):
    def __init__(self, job: Job) -> None:
        self._shape: Shape = job.shape
        self.buffer: Buffer = touched(job.shape.buffer_bytes)
        self._loop = Loop(job, self.buffer)

    def invitation(self) -> Invitation:
        return self._loop.invitation()

    def wait(self) -> int:
        return self._loop.receive(self._shape.writes)

    def close(self) -> None:
        self._loop.close()


class RawWriter(Writer):
    def __init__(self, job: Job, invitation: Invitation) -> None:
        self._shape = job.shape
        self._buffer = filled(job.shape)
        self._loop = Loop(job, self._buffer)
        self._loop.connect(invitation)

    def prepare(self, pages: Draw) -> Lists:
        return Lists(offsets(self._shape, pages.dst), offsets(self._shape, pages.src))

    def write(self, prepared: Lists, repetition: int, token: object) -> None:  # noqa: ARG002
        self._loop.write(prepared, self._shape.page_bytes)

    def close(self) -> None:
        self._loop.close()


def make_target(job: Job) -> Target:
    return RawTarget(job)


def make_writer(job: Job, invitation: Any) -> Writer:
    return RawWriter(job, invitation)
