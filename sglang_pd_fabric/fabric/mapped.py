"""Memory that processes of one host share: made by one (memfd), mapped by the others.

A page that goes to a peer on the same host needs no provider: the writer maps the peer's pool and copies
once. The owner passes on where its memory is to be found (``Share``); the other side opens it through
``/proc``, which the kernel allows to the same user, and makes sure that it is what was meant.
"""

import contextlib
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sglang_pd_fabric.fabric.errors import FabricError

MADV_POPULATE_WRITE = 23  # Linux 5.14; before, pages come with their first touch


def host_identity() -> str:
    """Equal for processes that see each other's numbers: the kernel's boot and the PID namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


@dataclass(frozen=True)
class Share:
    """Where another process of this host finds the memory: a descriptor of a process, and its inode."""

    host: str
    pid: int
    fd: int
    inode: int
    nbytes: int

    def owner_has_ended(self) -> bool:
        """Whether its process, of this host, is no more. Not known of another host's."""
        return self.host == host_identity() and not Path(f"/proc/{self.pid}").exists()


@dataclass(frozen=True)
class SharedRegion:
    """A part of shared memory."""

    share: Share
    offset: int
    nbytes: int


class SharedMemory:
    """A mapping of a memfd. ``SharedMemory.create`` makes a new one, ``attach`` maps somebody else's."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self._fd = fd
        self._mapping = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED)
        # Large pages where the kernel gives them to shared memory (shmem_enabled), and all of them at once: a
        # page fault in the middle of a copy costs more than the copy. Kernels refuse what they do not know.
        for advice in (mmap.MADV_HUGEPAGE, MADV_POPULATE_WRITE):
            with contextlib.suppress(OSError):
                self._mapping.madvise(advice)
        self._bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(self._mapping, np.uint8)
        self.address: int = self._bytes.ctypes.data

    @classmethod
    def create(cls, nbytes: int) -> "SharedMemory":
        """New memory, all zero, that others may map as long as this process lives."""
        fd = os.memfd_create("pd_fabric")
        os.ftruncate(fd, nbytes)
        return cls(fd, nbytes)

    @property
    def share(self) -> Share:
        """What another process needs to attach."""
        return Share(host_identity(), os.getpid(), self._fd, os.fstat(self._fd).st_ino, self.nbytes)

    def array(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes, shape ``[nbytes]``."""
        return self._bytes

    def close(self) -> None:
        """Unmaps it here. Views that are still in use keep the mapping alive."""
        del self._bytes
        with contextlib.suppress(BufferError):
            self._mapping.close()
        os.close(self._fd)


def attach(share: Share) -> SharedMemory:
    """Maps another process's memory.

    Raises:
        FabricError: the process is not on this host (or in this PID namespace), belongs to another user,
            has ended, or the descriptor means something else by now.
    """
    if share.host != host_identity():
        raise FabricError("memory of another host or container cannot be mapped")
    path = f"/proc/{share.pid}/fd/{share.fd}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise FabricError(f"memory of another process cannot be mapped: {path}: {error.strerror}") from None
    found = os.fstat(fd)
    if (found.st_ino, found.st_size) != (share.inode, share.nbytes):
        os.close(fd)
        raise FabricError(f"{path} is not the memory that was announced: the process was replaced")
    try:
        return SharedMemory(fd, share.nbytes)
    except OSError as error:
        os.close(fd)
        raise FabricError(f"memory of another process cannot be mapped: {path}: {error.strerror}") from None


def attach_all(shares: Iterable[Share]) -> dict[Share, SharedMemory]:
    """Maps all of them, or nothing.

    Raises:
        FabricError: see ``attach``.
    """
    mapped: dict[Share, SharedMemory] = {}
    try:
        for share in shares:
            mapped[share] = attach(share)
    except FabricError:
        for memory in mapped.values():
            memory.close()
        raise
    return mapped
