"""KV pools that prefill servers of the same host may map.

On the CPU platform a decode server's pools and metadata rows lie in memory that other processes can map
(memfd); a prefill on this host then copies pages straight into them. GPU pools are not shared yet.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.mapped import SharedMemory, SharedRegion
from sglang_pd_fabric.messenger.messages import Shared

# Every shared allocation of this process; SGLang keeps its pools as long as the process lives.
_blocks: list[SharedMemory] = []


@contextmanager
def shared_zeros() -> Iterator[None]:
    """Within it, ``torch.zeros`` on the CPU gives tensors in memory that other processes can map."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            tensor = func(*args, **(kwargs or {}))
            if func is not torch.zeros or tensor.device.type != "cpu" or not tensor.nbytes:
                return tensor
            block = SharedMemory.create(math.ceil(tensor.nbytes / 4096) * 4096)
            _blocks.append(block)
            flat = torch.from_numpy(block.array())[: tensor.nbytes]
            return flat.view(tensor.dtype).reshape(tensor.shape)

    with Mode():
        yield


def share_pools() -> None:
    """Makes SGLang create this process's KV pools and metadata rows in shared memory."""
    from sglang.srt.disaggregation.utils import MetadataBuffers
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    for owner, name in (
        (MHATokenToKVPool, "_create_buffers"),
        (MLATokenToKVPool, "_create_buffers"),
        (MetadataBuffers, "__init__"),
    ):
        setattr(owner, name, _in_shared_memory(getattr(owner, name)))


def _in_shared_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with shared_zeros():
            return original(*args, **kwargs)

    return wrapper


def shared_memory(engine: Engine, kv_args: Any) -> Shared | None:
    """What a prefill on this host needs to map all that it would write; None when a part is not shared."""
    slots = engine.slot_share
    buffers = [
        *zip(kv_args.kv_data_ptrs, kv_args.kv_data_lens, strict=True),
        *zip(kv_args.aux_data_ptrs, kv_args.aux_data_lens, strict=True),
    ]
    found = [region for address, nbytes in buffers if (region := _find(address, nbytes)) is not None]
    if slots is None or len(found) < len(buffers):
        return None
    return Shared(slots, tuple(found))


def _find(address: int, nbytes: int) -> SharedRegion | None:
    for block in _blocks:
        offset = address - block.address
        if offset >= 0 and offset + nbytes <= block.nbytes:
            return SharedRegion(block.share, offset, nbytes)
    return None
