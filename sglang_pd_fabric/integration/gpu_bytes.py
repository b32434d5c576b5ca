"""Reads pages of a GPU's pool for ``messenger/integrity.py``: gathered on the device, copied to the host.

Not run on a GPU yet (docs/verified.md); the gathering itself is tested with tensors of the host.
"""

from typing import Any

from sglang_pd_fabric.fabric.memory import CudaMemory, Memory
from sglang_pd_fabric.messenger.integrity import Bytes, Offsets, gather_host


class _DeviceBytes:
    """Memory as PyTorch takes what it did not allocate (the CUDA array interface, version 3)."""

    def __init__(self, memory: CudaMemory) -> None:
        self.__cuda_array_interface__ = {
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 3,
        }


def gather(memory: Memory, offsets: Offsets, nbytes: int) -> Bytes:
    """A ``Gather`` for memory of a GPU and of the host, where SGLang keeps the metadata rows.

    Raises:
        IndexError: an offset lies outside of it. On a GPU a kernel's assertion fails instead.
    """
    if not isinstance(memory, CudaMemory):
        return gather_host(memory, offsets, nbytes)
    import torch

    return gather_tensor(
        torch.as_tensor(_DeviceBytes(memory), device=f"cuda:{memory.device}"), offsets, nbytes
    )


def gather_tensor(tensor: Any, offsets: Offsets, nbytes: int) -> Bytes:
    """Runs of a tensor of bytes, shape ``[offsets, nbytes]``, in memory of the host."""
    import torch

    runs = tensor.as_strided((max(0, tensor.numel() - nbytes + 1), nbytes), (1, 1))
    gathered: Bytes = runs[torch.from_numpy(offsets).to(tensor.device)].cpu().numpy()
    return gathered
