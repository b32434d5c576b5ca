"""How much memory the process may lock. A real NIC locks all host memory that is registered with it.

The kernel counts each registration by itself (``ib_umem_get``): a pool that is registered with four NICs
counts four times. tcp and shm lock nothing.
"""

import errno
import resource
from pathlib import Path
from typing import NamedTuple

from sglang_pd_fabric.fabric.errors import FabricError

UNLIMITED = resource.RLIM_INFINITY
UNLOCK = "ulimit -l unlimited (docker: --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity)"
CAP_IPC_LOCK = 14
# What fi_mr_reg says when the kernel locks no more.
REFUSALS = {-errno.ENOMEM, -errno.EPERM, -errno.EAGAIN}


class LockLimit(NamedTuple):
    """What this process may lock."""

    nbytes: int  # RLIMIT_MEMLOCK, UNLIMITED for no limit
    exempt: bool  # the kernel does not look at the limit (CAP_IPC_LOCK)

    @classmethod
    def read(cls, root: Path = Path("/")) -> "LockLimit":
        status = root / "proc/self/status"
        lines = status.read_text().splitlines() if status.exists() else []
        effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
        return cls(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], bool(effective >> CAP_IPC_LOCK & 1))


def require(limit: LockLimit, host_bytes: int, nics: int) -> None:
    """Checks before a long registration that it can succeed.

    Args:
        host_bytes: host memory to register with each of the NICs.

    Raises:
        FabricError: the limit is lower than what the NICs will lock.
    """
    if not limit.exempt and _finite(limit) and host_bytes * nics > limit.nbytes:
        raise FabricError(f"{_numbers(limit, host_bytes, nics)}: {UNLOCK}")


def explain(limit: LockLimit, code: int, host_bytes: int, nics: int) -> str:
    """What to add to the error of a refused registration; empty when the limit cannot be its cause."""
    if code not in REFUSALS or not _finite(limit) or not host_bytes:
        return ""
    return f"{_numbers(limit, host_bytes, nics)}, which may be the reason: {UNLOCK}"


def size_text(nbytes: int) -> str:
    """Bytes for people: ``8.0 MiB``."""
    size, unit = float(nbytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def _finite(limit: LockLimit) -> bool:
    return limit.nbytes != UNLIMITED


def _numbers(limit: LockLimit, host_bytes: int, nics: int) -> str:
    locks = (
        f"{nics} NICs lock {size_text(host_bytes * nics)} of it" if nics > 1 else "the NIC locks all of it"
    )
    return (
        f"the pool has {size_text(host_bytes)}, {locks}, and locked memory is limited to "
        f"{size_text(limit.nbytes)} (RLIMIT_MEMLOCK)"
    )
