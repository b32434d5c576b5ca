"""How a NIC is given memory of a GPU: as a dmabuf, or by its address.

A dmabuf is the kernel's own way to hand device memory from one driver to another. By address works only
where a module of NVIDIA's translates (``nvidia_peermem`` for ConnectX, ``efa_nv_peermem`` for EFA), or where
libfabric itself copies (shm). Where both may work dmabuf comes first; the core falls back for each NIC.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import header_version
from sglang_pd_fabric.fabric.memory.cuda import CudaError, Driver
from sglang_pd_fabric.fabric.memory.model import CudaMemory
from sglang_pd_fabric.fabric.profiles import Profile, Version

DMABUF_SINCE: Version = (1, 20)  # fi_mr(3), FI_MR_DMABUF
HOST_PAGE = resource.getpagesize()
PEER_MEMORY_FIX = (
    "GPU memory reaches a NIC as a dmabuf (open NVIDIA kernel modules, Linux 5.12, libfabric 1.20) or "
    "through the peer-memory module (modprobe nvidia_peermem; for EFA efa_nv_peermem)"
)
SEGMENTS_FIX = (
    "start the server with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False "
    "and without SGLang's CUDA VMM pools"
)


class Range(NamedTuple):
    """Whole pages of the host around some bytes, and where in them these begin."""

    start: int
    nbytes: int
    offset: int


class Way(NamedTuple):
    """Whether to try a dmabuf, and why or why not."""

    dmabuf: bool
    why: str


class Export(NamedTuple):
    """A dmabuf and where in it the memory begins; ``fd`` is -1 without one, and ``why`` says why."""

    fd: int
    offset: int
    why: str


def page_range(address: int, nbytes: int, page: int = HOST_PAGE) -> Range:
    """The pages that the bytes lie in: CUDA exports nothing smaller (cuMemGetHandleForAddressRange)."""
    start = address // page * page
    end = -(-(address + nbytes) // page) * page
    return Range(start, end - start, address - start)


def choose(profile: Profile, version: Version, device: int, driver: Driver) -> Way:
    """How NICs of the profile are given memory of the device.

    Args:
        version: of libfabric.
    """
    if profile.device_driver is None:
        return Way(False, f"{profile.name} has no NIC that would take one")
    interface = min(version, profile.api or header_version())
    if interface < DMABUF_SINCE:
        return Way(False, f"libfabric's interface {interface[0]}.{interface[1]} has none, 1.20 has")
    if not driver.exports_dmabuf(device):
        return Way(False, f"the CUDA driver exports none of device {device}")
    return Way(True, "the CUDA driver exports it and libfabric takes it")


@contextmanager
def exported(memory: CudaMemory, way: Way, driver: Driver) -> Iterator[Export]:
    """The memory as a dmabuf as long as the context lasts, where the way says so and CUDA does it."""
    if not way.dmabuf:
        yield Export(-1, 0, way.why)
        return
    pages = page_range(memory.address, memory.nbytes)
    try:
        fd = driver.export_dmabuf(memory.device, pages.start, pages.nbytes)
    except CudaError as error:
        yield Export(-1, 0, str(error))
        return
    try:
        yield Export(fd, pages.offset, way.why)
    finally:
        os.close(fd)


def refuse_mapped(profile: Profile, memory: CudaMemory) -> None:
    """Memory that the profile's NICs are known not to register.

    Raises:
        FabricError: this is such memory.
    """
    if memory.mapped and not profile.registers_mapped:
        raise FabricError(
            f"{memory.nbytes} bytes at {memory.address:#x} of CUDA device {memory.device} are mapped by "
            f"CUDA's virtual memory management (expandable segments), which {profile.name} cannot register: "
            f"{SEGMENTS_FIX}"
        )


def explain(memory: CudaMemory, export: Export) -> str:
    """What to add to an error when the memory was not registered."""
    lines = [] if export.fd >= 0 else [f"no dmabuf was tried: {export.why}"]
    lines.append(PEER_MEMORY_FIX)
    if memory.mapped:
        lines.append(f"it is mapped by CUDA's virtual memory management: {SEGMENTS_FIX}")
    return "; ".join(lines)
