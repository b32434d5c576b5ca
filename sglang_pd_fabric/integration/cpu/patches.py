"""What SGLang 0.5.23 has no seam for and a CPU server still needs.

The first two functions are hooks (``hooks.py`` lists them), needed before SGLang calls the platform, or while
it loads a model. The others are called once in each scheduler process, after that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bind_no_threads(original: Callable[..., Any], *, device: str) -> Any:
    """Let several ranks share the cores, wherever the kernel's scheduler puts them.

    SGLang wants one NUMA node for each rank of a CPU server, to bind its threads to. The kernels that would
    bind them are not here, so only the demand would be left.
    """
    from sglang_pd_fabric.integration.cpu import selected

    return None if selected() else original(device=device)


def replicate_heads(original: Callable[..., Any], model_config: Any, *args: Any) -> Any:
    """Let ranks hold the same KV head where there are more ranks than heads, as on a GPU.

    SGLang gives a CPU server's model more heads instead, for weights that its own CPU loader pads.
    """
    from sglang_pd_fabric.integration.cpu import selected

    return model_config if selected() else original(model_config, *args)


def use_our_attention() -> None:
    """Put our attention backend in the place of the one that it extends."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    from sglang_pd_fabric.integration.cpu.attention import NAME, CpuAttentionBackend

    register_attention_backend(NAME)(CpuAttentionBackend)


def exchange_batches_without_cuda() -> None:
    """Let ranks with DP attention even out and gather their batches: no pinned memory, no CUDA operators.

    SGLang has plain forms of all of it, which it keeps for its own CPU engine.
    """
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers import dp_attention
    from sglang.srt.model_executor import forward_batch_info

    parallel_state._is_cpu = forward_batch_info._is_cpu = True
    dp_attention.memcpy_func = dp_attention.memcpy_cpu


def use_absorbed_mla(attention_backend: str) -> None:
    """Let DeepSeek models attend to the latent cache itself, in prefill as well as in decode.

    The attention backend reads K and V from the pool, and for MLA the pool holds the latent, so the
    un-absorbed form, which SGLang would choose for prefill, cannot work with it.
    """
    from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
    from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod

    AttentionBackendRegistry.register(attention_backend, lambda _attention, _batch: AttnForwardMethod.MLA)


def keep_stock_sender_off_cuda() -> None:
    """Make the stock Mooncake sender take its page list from a plain array.

    Its fast path copies the list through pinned memory and a CUDA event. Mooncake is one of the backends
    that we compare ourselves with; servers with another backend never import it.
    """
    from sglang.srt.runtime_context import get_disagg

    if get_disagg().disaggregation_transfer_backend.startswith("mooncake"):
        from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

        MooncakeKVSender.supports_host_tensor_indices = False


def tell_stock_nixl_that_pools_are_host_memory() -> None:
    """Make the stock NIXL backend register the KV pool as what it is here.

    It takes every KV pool for device memory, except those that HiSparse keeps on the host. NIXL is one of the
    backends that we compare ourselves with; servers with another backend never import it.
    """
    from sglang.srt.runtime_context import get_disagg

    if get_disagg().disaggregation_transfer_backend == "nixl":
        from sglang.srt.disaggregation.nixl import conn

        conn._normalize_kv_mem_kinds = lambda _kinds, buffers: ["DRAM"] * buffers


def share_decode_pools() -> None:
    """Let prefill servers of this host map a decode server's pools, unless the settings forbid it.

    The pools are created right after the model was loaded, which is when this is called.
    """
    from sglang.srt.runtime_context import get_disagg

    from sglang_pd_fabric.integration.plugin import BACKEND
    from sglang_pd_fabric.integration.shared_pools import share_pools
    from sglang_pd_fabric.settings import load_settings

    disagg = get_disagg()
    ours = disagg.disaggregation_transfer_backend == BACKEND and disagg.disaggregation_mode == "decode"
    if ours and load_settings().same_host != "provider":
        share_pools()
