"""The hooks of layer-by-layer sending: before a batch, around its forward pass, on the model, on the cache.

``planning`` decides what is sent, ``progress`` follows the layers, ``prefix_cache`` keeps the pages in place.
"""

from collections.abc import Callable
from typing import Any

from sglang_pd_fabric.integration.planning import FORWARD

# Where a model runner carries what follows its layers.
SIGNALS = "pd_fabric_layers"


def run_batch(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    planner = _planner(getattr(scheduler, "disagg_prefill_bootstrap_queue", None), "kv_manager")
    if planner is None:
        return original(scheduler, batch, *args, **kwargs)
    signals = getattr(scheduler.tp_worker.model_runner, SIGNALS, None)
    return planner.run(scheduler, batch, signals, lambda: original(scheduler, batch, *args, **kwargs))


def follow_layers(original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    forward = getattr(batch, FORWARD, None)
    signals = getattr(worker.model_runner, SIGNALS, None)
    if forward is None or signals is None:
        return original(worker, batch, *args, **kwargs)
    with signals.following(forward):
        return original(worker, batch, *args, **kwargs)


def signal_layers(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    """The draft model of speculative decoding is left alone: its pages go when the whole batch is through."""
    from sglang.srt.runtime_context import get_disagg

    from sglang_pd_fabric.integration.plugin import serves_us
    from sglang_pd_fabric.settings import load_settings

    result = original(runner, *args, **kwargs)
    prefill = serves_us() and get_disagg().disaggregation_mode == "prefill"
    if prefill and not runner.is_draft_worker and load_settings().layerwise:
        from sglang_pd_fabric.integration.progress import follow

        setattr(runner, SIGNALS, follow(runner))
    return result


def checkpoint(original: Callable[..., Any], req: Any, tree_cache: Any) -> Any:
    from sglang_pd_fabric.integration.prefix_cache import would_free_pages

    planner = _planner(req.disagg_kv_sender, "kv_mgr")
    if planner is not None and planner.layerwise and would_free_pages(req, tree_cache):
        req.prefix_len = req.extend_end
        return None
    return original(req, tree_cache)


def _planner(owner: Any, attribute: str) -> Any:
    """Of our manager, which hangs on SGLang's prefill queue and on each sender; None where it is not ours."""
    return getattr(getattr(owner, attribute, None), "planner", None)
