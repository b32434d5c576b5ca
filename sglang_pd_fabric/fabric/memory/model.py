"""The two kinds of memory that can be registered."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host: ``nbytes`` from ``address`` on."""

    address: int
    nbytes: int


@dataclass(frozen=True)
class CudaMemory:
    """Memory of a CUDA device.

    Attributes:
        device: CUDA's number of the device in this process.
        mapped: by CUDA's virtual memory management (``cuMemMap``), as PyTorch does with expandable segments.
    """

    address: int
    nbytes: int
    device: int
    mapped: bool = False


Memory = HostMemory | CudaMemory


def host_bytes(memories: list[Memory]) -> int:
    """Bytes of the host among them: what a NIC locks."""
    return sum(memory.nbytes for memory in memories if isinstance(memory, HostMemory))
