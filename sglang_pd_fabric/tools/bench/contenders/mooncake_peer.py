"""Mooncake's transfer engine over TCP, with synchronous batches of the size that its queue takes."""

from __future__ import annotations

from typing import Any, NamedTuple

from sglang_pd_fabric.tools.bench.contenders.base import Target, Writer
from sglang_pd_fabric.tools.bench.job import Job
from sglang_pd_fabric.tools.bench.workload import Buffer, Draw, filled, offsets, touched

BATCH = 128  # larger ones overflow its queue of a TCP lane and are refused


class Invitation(NamedTuple):
    session: str
    address: int


class Batch(NamedTuple):
    here: list[int]
    there: list[int]
    lengths: list[int]


def _engine(buffer: Buffer) -> Any:
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
        raise RuntimeError("Mooncake did not initialize")
    if engine.register_memory(buffer.ctypes.data, buffer.nbytes):
        raise RuntimeError("Mooncake did not register the buffer")
    return engine


class MooncakeTarget(Target):
    def __init__(self, job: Job) -> None:
        self.buffer: Buffer = touched(job.shape.buffer_bytes)
        self._engine = _engine(self.buffer)

    def invitation(self) -> Invitation:
        assert self.buffer is not None
        return Invitation(f"127.0.0.1:{self._engine.get_rpc_port()}", self.buffer.ctypes.data)


class MooncakeWriter(Writer):
    def __init__(self, job: Job, invitation: Invitation) -> None:
        self._shape = job.shape
        self._source = filled(job.shape)
        self._engine = _engine(self._source)
        self._to = invitation

    def prepare(self, pages: Draw) -> list[Batch]:
        here = (offsets(self._shape, pages.src) + self._source.ctypes.data).tolist()
        there = (offsets(self._shape, pages.dst) + self._to.address).tolist()
        lengths = [self._shape.page_bytes] * len(here)
        parts = [slice(start, start + BATCH) for start in range(0, len(here), BATCH)]
        return [Batch(here[part], there[part], lengths[part]) for part in parts]

    def write(self, prepared: list[Batch], repetition: int, token: object) -> None:  # noqa: ARG002
        for batch in prepared:
            if self._engine.batch_transfer_sync_write(self._to.session, *batch):
                raise RuntimeError("Mooncake reports an error")


def make_target(job: Job) -> Target:
    return MooncakeTarget(job)


def make_writer(job: Job, invitation: Any) -> Writer:
    return MooncakeWriter(job, invitation)
