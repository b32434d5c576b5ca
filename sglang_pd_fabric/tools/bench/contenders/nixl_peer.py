"""NIXL with its UCX backend, as SGLang drives it: descriptors are made for each transfer, and timed.

Over ``auto`` UCX chooses; ``tcp`` comes from ``UCX_TLS=tcp`` in the environment that the bench gives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_pd_fabric.tools.bench.contenders.base import Target, Writer
from sglang_pd_fabric.tools.bench.job import Job
from sglang_pd_fabric.tools.bench.workload import Buffer, Draw, Offsets, filled, offsets, touched


class Invitation(NamedTuple):
    metadata: bytes
    address: int


class Descriptors(NamedTuple):
    source: npt.NDArray[np.uint64]
    target: npt.NDArray[np.uint64]


def _agent(name: str, buffer: Buffer) -> Any:
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    agent.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM")
    return agent


class NixlTarget(Target):
    def __init__(self, job: Job) -> None:
        self.buffer: Buffer = touched(job.shape.buffer_bytes)
        self._agent = _agent("target", self.buffer)

    def invitation(self) -> Invitation:
        assert self.buffer is not None
        return Invitation(self._agent.get_agent_metadata(), self.buffer.ctypes.data)


class NixlWriter(Writer):
    def __init__(self, job: Job, invitation: Invitation) -> None:
        self._shape = job.shape
        self._source = filled(job.shape)
        self._there = invitation.address
        self._agent = _agent("writer", self._source)
        peer = self._agent.add_remote_agent(invitation.metadata)
        self._peer = peer.decode() if isinstance(peer, bytes) else peer

    def prepare(self, pages: Draw) -> Descriptors:
        here, there = offsets(self._shape, pages.src), offsets(self._shape, pages.dst)
        return Descriptors(self._rows(here, self._source.ctypes.data), self._rows(there, self._there))

    def _rows(self, starts: Offsets, base: int) -> npt.NDArray[np.uint64]:
        """Address, length, device: one row for each page."""
        rows = np.zeros((len(starts), 3), np.uint64)
        rows[:, 0], rows[:, 1] = starts + np.uint64(base), self._shape.page_bytes
        return rows

    def write(self, prepared: Descriptors, repetition: int, token: object) -> None:  # noqa: ARG002
        agent = self._agent
        source = agent.get_xfer_descs(prepared.source, "DRAM")
        target = agent.get_xfer_descs(prepared.target, "DRAM")
        handle = agent.initialize_xfer("WRITE", source, target, self._peer, b"%d" % repetition)
        state = agent.transfer(handle)
        while state != "DONE":
            if state == "ERR":
                raise RuntimeError("NIXL reports an error")
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)


def make_target(job: Job) -> Target:
    return NixlTarget(job)


def make_writer(job: Job, invitation: Any) -> Writer:
    return NixlWriter(job, invitation)
