"""Registers a list of memories with all NICs of an engine, with progress, and all of it or nothing.

The core works through the list in slices of time: meanwhile the engine's I/O thread waits, so each slice
is short, and between two of them writes under way go on and the caller learns how far it is.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from sglang_pd_fabric.fabric._core import ffi, lib
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import check
from sglang_pd_fabric.fabric.memory import dmabuf, locked
from sglang_pd_fabric.fabric.memory.cuda import Driver
from sglang_pd_fabric.fabric.memory.dmabuf import Export, Way
from sglang_pd_fabric.fabric.memory.locked import LockLimit
from sglang_pd_fabric.fabric.memory.model import CudaMemory, HostMemory, Memory, host_bytes
from sglang_pd_fabric.fabric.profiles import Profile, Version

SLICE_S = 0.2
SLICE_MEMORIES = 128  # a dmabuf descriptor is open for each
NO_DMABUF = Export(-1, 0, "it is memory of the host")


class Progress(NamedTuple):
    bytes_done: int
    bytes_total: int
    seconds: float  # since the start


class Row(NamedTuple):
    """A registered region, as the core says it: the fields of ``engine.Region``."""

    region: int  # its index
    base: int
    nbytes: int
    keys: tuple[int, ...]
    by_dmabuf: bool  # on every NIC
    memory: Memory


class Registration:
    """What is common to all memories that are registered in one go.

    Args:
        engine: the core's handle. No other call that registers or closes regions may run meanwhile.
        nics: how many the engine has.
        gpu: the engine was opened for memory of a GPU.
        driver: CUDA's, for ``CudaMemory``.
    """

    def __init__(
        self,
        engine: Any,
        profile: Profile,
        version: Version,
        *,
        nics: int,
        gpu: bool,
        driver: Driver | None,
    ) -> None:
        self._engine = engine
        self._profile = profile
        self._version = version
        self._nics = nics
        self._gpu = gpu
        self._driver = driver
        self._ways: dict[int, Way] = {}

    def run(self, memories: Sequence[Memory], progress: Callable[[Progress], None] | None) -> list[Row]:
        """Registers them in order.

        Raises:
            FabricError: one was refused, or cannot be registered at all; nothing of the list is then.
        """
        memories = list(memories)
        self._check(memories)
        start, total, done = time.monotonic(), sum(memory.nbytes for memory in memories), 0
        rows: list[Row] = []
        try:
            while len(rows) < len(memories):
                new = self._slice(memories, len(rows))
                rows += new
                done += sum(row.nbytes for row in new)
                if progress:
                    progress(Progress(done, total, time.monotonic() - start))
        except BaseException:
            if rows:
                lib.spf_regions_close(self._engine, rows[0].region, True, ffi.NULL)
            raise
        return rows

    def _check(self, memories: list[Memory]) -> None:
        for number, memory in enumerate(memories):
            if not isinstance(memory, CudaMemory):
                continue
            if not self._gpu or self._driver is None:
                raise FabricError(
                    f"buffer {number} of {len(memories)} is memory of CUDA device {memory.device}, but the "
                    "engine was opened for memory of the host only (gpu=False), or without a CUDA driver"
                )
            dmabuf.refuse_mapped(self._profile, memory)
        if self._profile.device_driver is not None:
            locked.require(LockLimit.read(), host_bytes(memories), self._nics)

    def _slice(self, memories: list[Memory], first: int) -> list[Row]:
        """Registers some, from the first on: as many as there is time for."""
        part = memories[first : first + SLICE_MEMORIES]
        rows = ffi.new("spf_region_info[]", len(part))
        done, error = ffi.new("uint32_t *"), ffi.new("spf_error *")
        with ExitStack() as stack:
            exports = [self._export(memory, stack) for memory in part]
            table = ffi.new("spf_memory[]", list(map(_memory_row, part, exports)))
            code = lib.spf_regions_register(
                self._engine, table, len(part), round(SLICE_S * 1e9), rows, done, error
            )
        try:
            check(code, error)
        except FabricError as refusal:
            raise self._explained(refusal, memories, first + done[0], exports[done[0]]) from None
        return [self._row(rows[number], part[number]) for number in range(done[0])]

    def _export(self, memory: Memory, stack: ExitStack) -> Export:
        if isinstance(memory, HostMemory) or self._driver is None:
            return NO_DMABUF
        if memory.device not in self._ways:
            self._ways[memory.device] = dmabuf.choose(
                self._profile, self._version, memory.device, self._driver
            )
        return stack.enter_context(dmabuf.exported(memory, self._ways[memory.device], self._driver))

    def _row(self, raw: Any, memory: Memory) -> Row:
        keys = tuple(ffi.unpack(raw.keys, self._nics))
        by_dmabuf = all(ffi.unpack(raw.by_dmabuf, self._nics))
        return Row(raw.region, raw.base, memory.nbytes, keys, by_dmabuf, memory)

    def _explained(
        self, refusal: FabricError, memories: list[Memory], number: int, export: Export
    ) -> FabricError:
        lines = [f"buffer {number} of {len(memories)} was not registered, so none is: {refusal}"]
        memory = memories[number]
        if isinstance(memory, CudaMemory):
            lines.append(dmabuf.explain(memory, export))
        else:
            lines.append(locked.explain(LockLimit.read(), refusal.code, host_bytes(memories), self._nics))
        return FabricError("; ".join(line for line in lines if line), refusal.code)


def _memory_row(memory: Memory, export: Export) -> tuple[int, int, int, int, int]:
    """``spf_memory`` of core/api.h."""
    device = memory.device if isinstance(memory, CudaMemory) else -1
    return memory.address, memory.nbytes, device, export.fd, export.offset
