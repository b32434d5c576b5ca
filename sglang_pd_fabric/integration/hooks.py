"""The hooks that we install into SGLang, and the check that they are really there.

Each hook first asks whether it is meant: installing this package must not change a server that uses
another backend.
"""

import math
import multiprocessing
import pkgutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sglang_pd_fabric.integration import chunked, hnd, layerwise, rooms
from sglang_pd_fabric.integration.conn import waiting
from sglang_pd_fabric.integration.cpu import patches
from sglang_pd_fabric.integration.first_token.hooks import HOOKS as FIRST_TOKEN_HOOKS
from sglang_pd_fabric.integration.http import refusals, samples, streams


class Hook(NamedTuple):
    """A function around a function of SGLang's: it gets the original first, then its arguments."""

    target: str
    around: Callable[..., Any]
    reason: str
    in_scheduler: bool = False  # its module is heavy, and only a scheduler process runs it
    in_server: bool = False  # only the HTTP server's process runs it


class HooksMissingError(RuntimeError):
    """SGLang started without a hook that the backend relies on."""


def _get_kv_class(original: Callable[..., Any], transfer_backend: Any, class_type: Any) -> Any:
    from sglang_pd_fabric.integration.plugin import BACKEND

    if transfer_backend.value == BACKEND:
        from sglang_pd_fabric.integration.conn import kv_class

        ours = kv_class(class_type.value)
        if ours is not None:
            return ours
    return original(transfer_backend, class_type)


def _send_cached_prefix_early(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """SGLang would send a cached prefix while the forward pass before it still runs; we do not."""
    from sglang_pd_fabric.integration.plugin import serves_us

    return None if serves_us() else original(*args, **kwargs)


def _hold_until_released(original: Callable[..., Any], queue: Any, decode_req: Any) -> Any:
    """SGLang would give the pages of an aborted request away after 30 s, whatever may still write to them.

    The messenger has a time limit of its own, which knows who was lost, and how.
    """
    from sglang_pd_fabric.integration.plugin import serves_us

    if serves_us():
        queue.deferred_kv_release_timeout = math.inf
    return original(queue, decode_req)


def _fail_together(
    original: Callable[..., Any], pollers: Sequence[Any], cp_group: Any, tp_group: Any
) -> list[int]:
    """SGLang frees the pages of a failed request on all ranks of prefill as soon as it has failed on one.

    Another may still read them for a row that it has handed over, and decode may take that for complete. So
    the failure counts when no rank reads any more; until then the request is being transferred. This costs
    nothing as long as nothing fails.
    """
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.utils import all_reduce_flags
    from torch.distributed import ReduceOp

    from sglang_pd_fabric.integration.plugin import serves_us

    polls = list(original(pollers, cp_group, tp_group))
    failed = [index for index, poll in enumerate(polls) if poll == KVPoll.Failed]
    if not failed or not serves_us():
        return polls
    released = [int(getattr(pollers[index], "released", lambda: True)()) for index in failed]
    for group in (tp_group, cp_group):
        released = all_reduce_flags(released, group, ReduceOp.MIN)
    for index, free in zip(failed, released, strict=True):
        if not free:
            polls[index] = int(KVPoll.Transferring)
    return polls


HOOKS = (
    Hook("sglang.srt.disaggregation.utils.get_kv_class", _get_kv_class, "finds the backend's classes"),
    Hook(
        "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.maybe_send_cached_prefix_chunk",
        _send_cached_prefix_early,
        "keeps pages of a running forward pass from being sent",
    ),
    Hook(
        "sglang.srt.disaggregation.prefill.poll_and_all_reduce_attn_cp_tp_group",
        _fail_together,
        "frees the pages of a failed request when no rank reads them any more",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.disaggregation.decode.DecodeTransferQueue._defer_release",
        _hold_until_released,
        "keeps pages of aborted requests until nobody can write to them",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.disaggregation.utils.get_pd_kv_layout",
        hnd.page_order,
        "tells peers how pages are ordered",
    ),
    Hook(
        "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool.get_contiguous_buf_infos",
        hnd.buffers_of_either_order,
        "lets pages ordered by head (HND) be sent",
    ),
    Hook(
        "sglang.srt.models.utils.enable_fused_set_kv_buffer",
        hnd.no_fused_store,
        "keeps a kernel that knows NHD only from writing into HND pages",
    ),
    Hook(
        "sglang.srt.distributed.bootstrap._bind_threads_if_cpu",
        patches.bind_no_threads,
        "lets the ranks of a CPU server share a NUMA node",
    ),
    Hook(
        "sglang.srt.model_executor.model_runner.adjust_config_with_unaligned_cpu_tp",
        patches.replicate_heads,
        "lets ranks of a CPU server hold the same KV head",
    ),
    Hook(
        "sglang.srt.managers.scheduler.Scheduler.run_batch",
        layerwise.run_batch,
        "plans each chunk before its forward pass",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        layerwise.follow_layers,
        "tells the layers which forward pass they belong to",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.model_executor.model_runner.ModelRunner.load_model",
        layerwise.signal_layers,
        "lets each layer say when it is done",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.mem_cache.common.checkpoint_kv_cache",
        layerwise.checkpoint,
        "keeps pages that are being sent from being exchanged for cached ones",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.managers.scheduler.Scheduler.process_pending_chunked_abort",
        chunked.stop_failed,
        "ends prompts of failed requests between two chunks",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.disaggregation.decode.DecodePreallocQueue._resolve_pending_reqs",
        waiting.resolve_pending,
        "keeps the scheduler from waiting for a prefill's bootstrap server",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.disaggregation.decode.DecodePreallocQueue.prefetch_prefill_dp_rank_queries",
        waiting.prefetch_ranks,
        "leaves questions for DP ranks to the thread that asks them",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.disaggregation.decode.DecodePreallocQueue.add",
        rooms.enter,
        "refuses room numbers that cannot be used",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.add",
        rooms.enter,
        "refuses room numbers that cannot be used",
        in_scheduler=True,
    ),
    Hook(
        "sglang.srt.disaggregation.utils.prepare_abort",
        refusals.refused_is_400,
        "answers what the other side has refused as a client's error",
    ),
    Hook(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request",
        refusals.generate_request,
        "tells the other side of refused requests",
        in_server=True,
    ),
    Hook(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._handle_batch_request",
        samples.handle_batch,
        "counts the samples of a prompt",
        in_server=True,
    ),
    Hook(
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._send_one_request",
        samples.send_one,
        "gives each sample of a prompt a room",
        in_server=True,
    ),
    Hook(
        "sglang.srt.entrypoints.http_server.launch_server",
        streams.launch_server,
        "gives streams that fail a status and an error event",
        in_server=True,
    ),
    *(Hook(*row, in_scheduler=True) for row in FIRST_TOKEN_HOOKS),
)


def scheduler_process() -> bool:
    """Whether this process runs a scheduler, so that its heavy modules are there anyway."""
    return "sglang.srt.managers.scheduler" in sys.modules


def server_process() -> bool:
    """Whether this process runs the HTTP server: it starts all others."""
    return multiprocessing.parent_process() is None


def install() -> None:
    """Registers every hook that this process can need; SGLang applies them after all plugins have run."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in HOOKS:
        if (hook.in_scheduler and not scheduler_process()) or (hook.in_server and not server_process()):
            continue
        HookRegistry.register(hook.target, hook.around, HookType.AROUND)


def require_installed(*, in_server: bool = False) -> None:
    """Checks that SGLang has applied every hook of a scheduler's process, or those of the HTTP server's own.

    Raises:
        HooksMissingError: one is missing; the message names it and what it is for.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry

    for hook in HOOKS:
        if hook.in_server is not in_server:
            continue
        registered = any(entry[1] is hook.around for entry in HookRegistry._hooks.get(hook.target, ()))
        applied = hook.target in HookRegistry._patched
        wrapped = hasattr(pkgutil.resolve_name(hook.target), "__wrapped__")
        if not (registered and applied and wrapped):
            raise HooksMissingError(
                f"the hook on {hook.target}, which {hook.reason}, is not installed in this process. Look for "
                "'Failed to apply hooks' above; check that SGLANG_PLUGINS, if set, contains 'fabric'"
            )
