"""A long prompt whose request has failed is not computed to its end.

SGLang looks at a request again when all chunks of its prompt have run: a prefill whose decode has died would
go on for seconds, with pages that nobody wants, while others wait.
"""

from collections.abc import Callable
from typing import Any


def stop_failed(original: Callable[..., None], scheduler: Any) -> None:
    """Around ``Scheduler.process_pending_chunked_abort``: ends the prompt between two of its chunks.

    All ranks have the same chunked request at the same step, and agree on whether it has failed.
    """
    from sglang_pd_fabric.integration.plugin import serves_us

    req = scheduler.chunked_req
    if req is not None and scheduler._pending_chunked_abort_req is None and serves_us():
        reason = _failure(scheduler, req)
        if reason is not None:
            from sglang.srt.managers.schedule_batch import FINISH_ABORT

            req.discard_output_reason = FINISH_ABORT(reason, 500)
            scheduler._pending_chunked_abort_req = req
    original(scheduler)


def _failure(scheduler: Any, req: Any) -> str | None:
    """Why the request has failed on any of the ranks that compute it; None: it has not."""
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.utils import poll_and_all_reduce_attn_cp_tp_group

    from sglang_pd_fabric.integration.conn.sender import FabricKVSender

    sender = getattr(req, "disagg_kv_sender", None)  # none on decode
    if not isinstance(sender, FabricKVSender):
        return None
    (status,) = poll_and_all_reduce_attn_cp_tp_group(
        [sender], scheduler.attn_cp_cpu_group, scheduler.attn_tp_cpu_group
    )
    if status != KVPoll.Failed:
        return None
    reason: str = sender.kv_mgr.failure_records.get(req.bootstrap_room, "it has failed on another rank")
    return f"the prompt was not computed to its end: {reason}"
