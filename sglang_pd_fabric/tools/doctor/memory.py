"""Checks of GPUs and of memory: what may be locked, opened, shared, mapped."""

import os
from collections.abc import Iterator

from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.memory import find_driver
from sglang_pd_fabric.fabric.memory.dmabuf import PEER_MEMORY_FIX
from sglang_pd_fabric.fabric.memory.locked import UNLIMITED, UNLOCK, LockLimit, size_text
from sglang_pd_fabric.fabric.shared_memory import ENDPOINT_BYTES, ENLARGE
from sglang_pd_fabric.tools.doctor.finding import Finding, Level
from sglang_pd_fabric.tools.doctor.place import Place

PEER_MEMORY_MODULES = ("nvidia_peermem", "efa_nv_peermem", "nv_peer_mem")
ENOUGH_FILES = 65_536
FEW_FILES = 4_096


def gpus(place: Place) -> Iterator[Finding]:
    """Whether NICs can reach the GPUs' memory."""
    found = place.topology.gpus
    if not found:
        yield Finding("GPUs", Level.OK, "none: pools are in the host's memory")
        return
    try:
        driver = find_driver()
    except FabricError as error:
        yield Finding("GPUs", Level.FAIL, f"{len(found)} GPUs, and CUDA does not answer", str(error))
        return
    if driver is None:
        todo = "install the NVIDIA driver and cuda-python, or pass the GPUs to the container (--gpus all)"
        yield Finding("GPUs", Level.FAIL, f"{len(found)} GPUs, and no CUDA driver", todo)
        return
    modules = sorted(place.modules().intersection(PEER_MEMORY_MODULES))
    try:
        without = [index for index in range(len(found)) if not driver.exports_dmabuf(index)]
    except FabricError:  # fewer are visible than the machine has
        without = []
    if without and not modules:
        yield Finding(
            "GPUs",
            Level.FAIL,
            f"GPUs {without} export no dmabuf, and no peer-memory module is loaded",
            PEER_MEMORY_FIX,
        )
        return
    way = f"by {', '.join(modules)}" if without else "as dmabuf"
    yield Finding("GPUs", Level.OK, f"{len(found)} GPUs; NICs reach their memory {way}")


def limits(place: Place) -> Iterator[Finding]:
    """What the process may lock and open."""
    lock = LockLimit.read(place.root)
    rdma = any(nic.rdma for nic in place.topology.nics)
    if lock.nbytes == UNLIMITED or lock.exempt:
        yield Finding("limits", Level.OK, "memory may be locked without limit")
    else:
        text = f"locked memory is limited to {size_text(lock.nbytes)}"
        level = Level.FAIL if rdma else Level.OK
        yield Finding("limits", level, text + ("" if rdma else "; tcp and shm lock none"), UNLOCK * rdma)
    files = place.open_files
    level = (
        Level.OK if files >= ENOUGH_FILES or files < 0 else Level.WARN if files >= FEW_FILES else Level.FAIL
    )
    todo = (
        ""
        if level is Level.OK
        else f"ulimit -n {ENOUGH_FILES} (docker: --ulimit nofile; systemd: LimitNOFILE)"
    )
    yield Finding("limits", level, f"{'any number of' if files < 0 else files} open files", todo)


def shared(place: Place) -> Iterator[Finding]:
    """What peers on one host need."""
    folder = place.root / "dev/shm"
    if not folder.is_dir():
        yield Finding("/dev/shm", Level.WARN, "it is absent: no shm, no mapped memory", ENLARGE)
    else:
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize
        needed = (os.cpu_count() or 1) * ENDPOINT_BYTES
        level = Level.OK if free >= needed else Level.WARN
        text = f"{size_text(free)} free; libfabric wants {size_text(needed)} before it offers shm"
        yield Finding("/dev/shm", level, text, ENLARGE if level else "")
    scope = place.read("proc/sys/kernel/yama/ptrace_scope")
    if scope in ("", "0"):
        yield Finding("/dev/shm", Level.OK, "processes of one user may copy from each other (CMA)")
    else:
        yield Finding(
            "/dev/shm",
            Level.WARN,
            f"kernel.yama.ptrace_scope={scope}: no CMA, so shm copies each page twice",
            "sysctl kernel.yama.ptrace_scope=0 (docker: --cap-add=SYS_PTRACE); mapped peers do not need it",
        )


def pages(place: Place) -> Iterator[Finding]:
    """Huge pages and NUMA: what makes registration and copies slow."""
    fields = dict(line.split(":", 1) for line in place.read("proc/meminfo").splitlines() if ":" in line)
    total, free = (int(fields.get(name, "0").split()[0]) for name in ("HugePages_Total", "HugePages_Free"))
    size = fields.get("Hugepagesize", "").strip() or "?"
    transparent = place.read("sys/kernel/mm/transparent_hugepage/enabled")
    mode = transparent.partition("[")[2].partition("]")[0] or "unknown"
    text = f"huge pages: {free} of {total} free ({size}), transparent: {mode}"
    if mode == "never" and total == 0:
        todo = (
            "host pools register faster with them: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        )
        yield Finding("memory", Level.WARN, text, todo)
    else:
        yield Finding("memory", Level.OK, text)
    nodes = {core.numa for core in place.topology.cores if core.numa >= 0}
    balancing = place.read("proc/sys/kernel/numa_balancing")
    if len(nodes) > 1 and balancing not in ("", "0"):
        todo = "sysctl kernel.numa_balancing=0: it moves pages of pinned buffers and stalls the I/O thread"
        yield Finding("memory", Level.WARN, f"{len(nodes)} NUMA nodes with automatic balancing", todo)
    else:
        yield Finding("memory", Level.OK, f"{len(nodes) or 'no known'} NUMA node{'s' * (len(nodes) != 1)}")
