"""Our endpoints under ``/dev/shm``: their names, their room, and removal of those of killed processes.

libfabric's shm provider keeps each endpoint in a file (some 16 MB) and removes it on a clean end only.
Its own names are reused (``pid:uid:n``); ours carry the process and a random part, so an engine is never
mistaken for an earlier one, and they carry the PID namespace, so that containers that share ``/dev/shm``
do not take each other's processes for dead.

The provider makes its file longer than the memory behind it. When ``/dev/shm`` is full by the time a page of
it is touched, the kernel kills the process (SIGBUS). So we reserve all of it at the start.
"""

import contextlib
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from sglang_pd_fabric.fabric.errors import FabricError

FOLDER = Path("/dev/shm")
PREFIX = "pd_fabric"
# libfabric offers no shm while less than this is free for each CPU of the machine (prov/shm/src/smr_init.c).
ENDPOINT_BYTES = 16 << 20
ENLARGE = (
    "enlarge it (docker: --shm-size; Kubernetes: an emptyDir with medium: Memory at /dev/shm), "
    "use the host's (docker: --ipc=host), or remove what lies there"
)
SHARE = "both must see one /dev/shm (docker: --ipc=host on both, or one volume at /dev/shm)"


def new_endpoint_name() -> str:
    """A name that no other endpoint has or had."""
    return f"{PREFIX}.{_pid_namespace()}.{os.getpid()}.{secrets.token_hex(4)}"


def remove_stale(folder: Path = FOLDER) -> list[Path]:
    """Removes the endpoints of this user whose process of this PID namespace is dead. Returns them."""
    removed = []
    for path in folder.glob(f"{PREFIX}.{_pid_namespace()}.*.*"):
        pid = path.name.split(".")[2]
        # Whoever else removes it at the same time is welcome, and what we cannot read is not ours.
        with contextlib.suppress(OSError):
            if pid.isdecimal() and path.stat().st_uid == os.getuid() and not _alive(int(pid)):
                path.unlink()
                removed.append(path)
    return removed


def endpoint_file(address: bytes, folder: Path = FOLDER) -> Path | None:
    """The file of one of our endpoints, from the address that its NIC has; None for other names."""
    name = address.split(b"\0")[0].decode("ascii", "replace").removeprefix("fi_shm://")
    return folder / name if name.startswith(f"{PREFIX}.") and "/" not in name else None


def reserve(addresses: Iterable[bytes], folder: Path = FOLDER) -> None:
    """Takes the memory of endpoints now, all that they can ever need.

    Raises:
        FabricError: there is not so much.
    """
    for path in filter(None, (endpoint_file(address, folder) for address in addresses)):
        nbytes = path.stat().st_size
        try:
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, nbytes)
        except OSError as error:
            raise FabricError(
                f"{folder} has no room for an endpoint of {nbytes >> 20} MiB ({error.strerror}): {ENLARGE}"
            ) from error


def require_visible(addresses: Iterable[bytes], folder: Path = FOLDER) -> None:
    """Checks that we see a peer's endpoints. Writes to others would wait for their deadline.

    Raises:
        FabricError: its ``/dev/shm`` is not ours, or it has ended.
    """
    for path in filter(None, (endpoint_file(address, folder) for address in addresses)):
        if not path.exists():
            raise FabricError(
                f"the peer's shm endpoint {path} does not exist for us: the peer has ended, or it runs in "
                f"another container; {SHARE}"
            )


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
