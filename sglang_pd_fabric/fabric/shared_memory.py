"""Names of our endpoints under ``/dev/shm``, and removal of those that a killed process left there.

libfabric's shm provider keeps each endpoint in a file (some 16 MB) and removes it on a clean end only.
Its own names are reused (``pid:uid:n``); ours carry the process and a random part, so an engine is never
mistaken for an earlier one, and they carry the PID namespace, so that containers that share ``/dev/shm``
do not take each other's processes for dead.
"""

import contextlib
import os
import secrets
from pathlib import Path

FOLDER = Path("/dev/shm")
PREFIX = "pd_fabric"


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


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
