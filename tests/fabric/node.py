"""One process of the fabric tests: an engine with plain byte buffers, driven over a pipe.

Sender and receiver of a test are two such processes, so each test can choose the libfabric that they
load, kill or freeze either of them, and never has libfabric in pytest's own process. ``Service`` runs in
the process, ``Node`` is the handle on it; each public method of the service is a question for ``ask``.
"""

import ctypes
import dataclasses
import faulthandler
import multiprocessing as mp
import os
import resource
import select
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self
from unittest import mock

import numpy as np
import numpy.typing as npt
from standstill import freeze, thaw

from sglang_pd_fabric.fabric.engine import Engine, Peer, Region
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.fabric.memory import HostMemory
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.fabric.progress import TraceEvent
from sglang_pd_fabric.fabric.records import EngineStats
from sglang_pd_fabric.fabric.transfer import COPY, CopyTable, Transfer
from sglang_pd_fabric.fabric.transfer import TransferStatus as Status

HANG = 60.0  # seconds: only ends a test that hangs


@dataclass(frozen=True)
class Spec:
    """How the engine of a node is opened."""

    library: str
    provider: str
    nics: int = 1
    profile: dict[str, int] = field(default_factory=dict)  # what differs from the provider's profile
    options: dict[str, Any] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)  # not empty: a process of its own from its start on
    own_shm: int = 0  # bytes of a /dev/shm that nobody else sees; 0: everybody's


@dataclass(frozen=True)
class Invitation:
    """What another node needs to write to this one."""

    addresses: list[bytes]
    regions: list[Region]


def pattern(nbytes: int, seed: int | None) -> npt.NDArray[np.uint8]:
    """The content of a buffer: zeros, or what the seed says."""
    if seed is None:
        return np.zeros(nbytes, np.uint8)
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def copies(rows: int = 1, **columns: object) -> CopyTable:
    """A copy table; what is not named is zero."""
    table = np.zeros(rows, COPY)
    for name, value in columns.items():
        table[name] = value
    return table


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something that has no event."""
    limit = time.monotonic() + HANG
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(what)
        time.sleep(1e-4)


class Service:
    def __init__(self, spec: Spec, pipe: Connection) -> None:
        self._pipe = pipe
        profile = dataclasses.replace(PROFILES[spec.provider], **spec.profile)
        hosts = [f"127.0.0.{1 + nic}" if profile.binds_host else None for nic in range(spec.nics)]
        self._engine = Engine(open_library(spec.library), profile, sources=hosts, **spec.options)
        self._buffers: list[npt.NDArray[np.uint8]] = []
        self._regions: list[Region] = []
        self._peers: dict[int, Peer] = {}
        self._transfers: dict[int, Transfer] = {}

    def version(self) -> tuple[int, int]:
        return self._engine.library.version

    def allocate(self, nbytes: int, seed: int | None = None) -> int:
        buffer = pattern(nbytes, seed)
        self._regions.append(self._engine.register(buffer.ctypes.data, nbytes, buffer))
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def allocate_pieces(self, nbytes: int, count: int, seed: int | None) -> npt.NDArray[np.uint8]:
        """One buffer with a region for each of its equal parts; its content."""
        buffer = pattern(nbytes, seed)
        start, piece = buffer.ctypes.data, nbytes // count
        memories = [HostMemory(start + piece * number, piece) for number in range(count)]
        self._regions += self._engine.register_all(memories, owner=buffer)
        self._buffers.append(buffer)
        return buffer

    def register_again(self, buffer: int) -> None:
        it = self._buffers[buffer]
        self._regions.append(self._engine.register(it.ctypes.data, it.nbytes, it))

    def unregister(self, first: int) -> None:
        """Closes regions from this one on."""
        self._engine.unregister(self._regions[first])
        del self._regions[first:]

    def unregister_index(self, index: int) -> None:
        self._engine.unregister(Region(index, 0, 0, ()))

    def invite(self) -> Invitation:
        return Invitation([nic.address for nic in self._engine.nics], self._regions)

    def clear(self, region: int, nbytes: int) -> None:
        self._buffers[region][:nbytes] = 0

    def read(self, region: int, nbytes: int) -> npt.NDArray[np.uint8]:
        return self._buffers[region][:nbytes].copy()

    def read_when_full(
        self, slot: int, units: int, region: int, nbytes: int
    ) -> tuple[int, npt.NDArray[np.uint8]]:
        """The bytes as they are at the moment the slot's count is there, and the count."""
        limit = time.monotonic() + HANG
        while (seen := self._engine.slot_units(slot)) < units:
            if time.monotonic() > limit:
                break
        return seen, self._buffers[region][:nbytes].copy()

    def await_units(self, slot: int, units: int) -> int:
        until(
            lambda: self._engine.slot_units(slot) >= units, f"slot {slot} has {self.units(slot)} of {units}"
        )
        return self.units(slot)

    def units(self, slot: int) -> int:
        return self._engine.slot_units(slot)

    def generation(self, slot: int) -> int:
        return self._engine.slot_generation(slot)

    def advance(self, slot: int) -> int:
        return self._engine.advance_slot(slot)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def add_peer(self, invitation: Invitation) -> int:
        number = len(self._peers)
        self._peers[number] = self._engine.add_peer(invitation.addresses, invitation.regions)
        return number

    def remove_peer(self, peer: int) -> None:
        self._peers[peer].remove()

    def send(
        self,
        peer: int,
        slot: int,
        table: CopyTable,
        src: npt.NDArray[np.uint32],
        dst: npt.NDArray[np.uint32],
        generation: int = 1,
        forward: int = 0,
    ) -> int:
        """Opens a transfer with one plan."""
        number = len(self._transfers)
        self._transfers[number] = self._engine.open_transfer(self._peers[peer], slot, generation)
        self._transfers[number].submit(table, src, dst, forward)
        return number

    def submit(
        self, transfer: int, table: CopyTable, src: npt.NDArray[np.uint32], dst: npt.NDArray[np.uint32]
    ) -> None:
        self._transfers[transfer].submit(table, src, dst)

    def status(self, transfer: int) -> Status:
        return self._transfers[transfer].status()

    def await_bytes(self, transfer: int, nbytes: int) -> Status:
        """Until so much is done, or the transfer has ended."""
        it = self._transfers[transfer]
        until(lambda: (s := it.status()).bytes_done >= nbytes or s.quiet or s.error != 0, "some bytes")
        return it.status()

    def finish(self, transfer: int) -> Status:
        """Until it is quiet."""
        it = self._transfers[transfer]
        until(lambda: it.status().quiet, f"quiet: {it.status()}, {self.stats()}")
        return it.status()

    def end(self, transfer: int) -> Status:
        """Until it is quiet or has failed."""
        it = self._transfers[transfer]
        until(lambda: it.status().quiet or it.status().error != 0, f"an end: {it.status()}, {self.stats()}")
        return it.status()

    def cancel(self, transfer: int) -> None:
        self._transfers[transfer].cancel()

    def release(self, transfer: int) -> None:
        self._transfers[transfer].release()

    def progress(self, forward: int, steps: int) -> None:
        self._engine.progress.store(forward, steps)

    def take_trace(self) -> list[TraceEvent]:
        return self._engine.take_trace()

    def await_sleeps(self, count: int) -> None:
        """Until the I/O thread has slept so many times more."""
        end = self._engine.stats().sleeps + count
        until(lambda: self._engine.stats().sleeps >= end, "sleeps")

    def spare_descriptors(self, spare: bool) -> None:
        """Whether the process may open one more file descriptor."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if spare else 0, hard))

    def remove_nic(self, nic: int) -> None:
        self._engine.remove_nic(nic)

    def hold_gil(self) -> None:
        """Holds the GIL until the next question comes: no Python runs in this process meanwhile."""
        self._pipe.send((None, None))
        poll = ctypes.PyDLL(None).poll
        poll(ctypes.byref((ctypes.c_int * 2)(self._pipe.fileno(), select.POLLIN)), 1, -1)

    def close(self, drain: float = 0.0) -> None:
        self._engine.close(drain)


def leave_shm(nbytes: int) -> None:
    """Gives this thread, and those that it starts, a /dev/shm of their own, as a container has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    private, new_mounts = 1 << 18 | 1 << 14, 0x20000  # MS_PRIVATE | MS_REC, CLONE_NEWNS
    for call in (
        lambda: libc.unshare(new_mounts),
        lambda: libc.mount(None, b"/", None, private, None),
        lambda: libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={nbytes}".encode()),
    ):
        if call():
            raise FabricError(os.strerror(ctypes.get_errno()))


def _serve(pipe: Connection, spec: Spec) -> None:
    faulthandler.enable()
    try:
        if spec.own_shm:
            leave_shm(spec.own_shm)
        service = Service(spec, pipe)
    except FabricError as error:
        pipe.send((None, (type(error), str(error))))
        return
    pipe.send((service.invite().addresses, None))
    with suppress(EOFError):
        while True:
            name, arguments = pipe.recv()
            try:
                answer = (getattr(service, name)(*arguments), None)
            except (FabricError, TimeoutError) as error:
                answer = (None, (type(error), str(error)))
            except Exception:
                answer = (None, (AssertionError, traceback.format_exc()))
            if name != "hold_gil":
                pipe.send(answer)


class Node:
    """A handle on the process."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._killed = False
        # An allocator and a libfabric read their variables when they are loaded.
        context = mp.get_context("spawn" if spec.environ else "forkserver")
        if not spec.environ:
            context.set_forkserver_preload(["sglang_pd_fabric.fabric.engine"])  # opens no libfabric yet
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, spec), daemon=True)
        with mock.patch.dict(os.environ, spec.environ):
            self.process.start()
        theirs.close()
        self._answer()

    def ask(self, name: str, *arguments: object) -> Any:
        self.tell(name, *arguments)
        return self._answer()

    def tell(self, name: str, *arguments: object) -> None:
        """Asks without waiting for the answer: the next ``answer`` has it."""
        self._pipe.send((name, arguments))

    def answer(self) -> Any:
        return self._answer()

    def _answer(self) -> Any:
        if not self._pipe.poll(HANG + 10):
            raise TimeoutError("the process does not answer")
        answer, error = self._pipe.recv()
        if error:
            kind, text = error
            raise kind(text)
        return answer

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def io_thread(self) -> Path:
        """The I/O thread's folder in /proc."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            if (task / "comm").read_text().strip() == "pd_fabric_io":
                return task
        raise AssertionError("no I/O thread")

    def io_cpu_ns(self) -> int:
        """CPU time that the I/O thread has used."""
        return int((self.io_thread() / "schedstat").read_text().split()[0])

    def cpus(self) -> dict[int, str]:
        """Where each thread may run, as the kernel says it."""
        found = {}
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            status = (task / "status").read_text()
            found[int(task.name)] = status.split("Cpus_allowed_list:")[1].split()[0]
        return found

    def kill(self) -> None:
        self._killed = True
        self.process.kill()
        self.process.join()

    def freeze(self) -> None:
        freeze(self.pid)

    def thaw(self) -> None:
        thaw(self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """After a test that went well the engine closes and the process ends in good order."""
        try:
            if kind is None and not self._killed:
                assert self.process.is_alive(), f"it has ended by itself: {self.process.exitcode}"
                self.ask("close")
                self._pipe.close()
                self.process.join(HANG)
                assert self.process.exitcode == 0
        finally:
            self.kill()
