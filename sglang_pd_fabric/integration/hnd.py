"""Pages ordered [head, token, dim] (HND): what SGLang leaves out for them under PD disaggregation.

SGLang has HND pools (``SGLANG_USE_HND_KVCACHE=1``, read by the attention backends fa3, fa4 and trtllm_mha)
and refuses to send their pages. To send one is no different from an NHD page, whose size it has. With HND a
head's share of a page is contiguous, so that a change of TP costs one write for each page, not one for each
token. The functions here are hooks (``hooks.py`` lists them) and do nothing for other backends.
"""

from collections.abc import Callable
from typing import Any

# Attention backends that read HND pages: SGLang's own, and the one that our CPU platform puts in its place.
READERS = ("fa3", "fa4", "trtllm_mha")
CPU_READERS = ("torch_native",)


class UnsafeHndError(RuntimeError):
    """The server is configured for something that would misread pages of the HND order."""


def page_order(original: Callable[..., Any], pool: Any) -> Any:
    """The order of the pool that was really made, where SGLang says nothing: it travels to the peers."""
    from sglang_pd_fabric.integration.plugin import serves_us

    layout = original(pool)
    if layout is None and serves_us():
        return getattr(pool, "kv_cache_layout", "nhd")
    return layout


def buffers_of_either_order(original: Callable[..., Any], pool: Any) -> Any:
    """Addresses, sizes and bytes per page of a pool's buffers, HND or not.

    Raises:
        UnsafeHndError: names the flag that does not go with HND, and its remedy.
    """
    from sglang_pd_fabric.integration.plugin import serves_us

    if not pool.use_hnd or not serves_us():
        return original(pool)
    _require_hnd_everywhere()
    pool.use_hnd = False  # nothing in the original depends on it but the refusal
    try:
        return original(pool)
    finally:
        pool.use_hnd = True


def _require_hnd_everywhere() -> None:
    from sglang.srt.runtime_context import attention_backends, get_disagg

    from sglang_pd_fabric.integration import cpu

    readers = CPU_READERS if cpu.selected() else READERS
    for backend in attention_backends():
        if backend not in readers:
            raise UnsafeHndError(
                f"SGLANG_USE_HND_KVCACHE: the attention backend {backend} does not read HND pages; "
                f"use --attention-backend {' or '.join(readers)}"
            )
    disagg = get_disagg()
    backup = disagg.disaggregation_decode_retraction_backup
    if disagg.disaggregation_mode == "decode" and backup != "none":
        raise UnsafeHndError(
            f"SGLANG_USE_HND_KVCACHE: --disaggregation-decode-retraction-backup {backup} cannot copy HND "
            "pages; use none"
        )


def no_fused_store(original: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether a model may store K and V in the kernel of its rotary embedding, which knows rows of tokens."""
    from sglang.srt.model_executor.forward_context import get_token_to_kv_pool

    from sglang_pd_fabric.integration.plugin import serves_us

    if serves_us() and getattr(get_token_to_kv_pool(), "use_hnd", False):
        return False
    return bool(original(*args, **kwargs))
