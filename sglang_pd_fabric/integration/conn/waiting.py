"""Requests of decode that wait until their prefill is known: SGLang's loop over them, without its waiting.

Installed as hooks on ``DecodePreallocQueue`` in sglang/srt/disaggregation/decode.py.
"""

from collections.abc import Callable
from typing import Any


def resolve_pending(original: Callable[..., Any], queue: Any) -> None:
    """Starts the requests whose prefill ranks are known, and ends those that have waited too long."""
    from sglang_pd_fabric.integration.plugin import serves_us

    if not serves_us():
        original(queue)
        return
    lookups = queue.kv_manager.lookups
    waiting = []
    for request in queue.pending_reqs:
        receiver = request.kv_receiver
        if receiver is None or receiver.conclude_state is not None:
            continue  # it was aborted
        address = receiver.bootstrap_addr
        rank = None
        if lookups.ask(address) is not None:
            rank = queue._resolve_prefill_dp_rank(request.req)
            if rank is None:
                rank = lookups.dp_rank(address, receiver.bootstrap_room)
        if rank is not None:
            queue._init_receiver(request, rank)
        elif lookups.forbids(address) or receiver.looked_for() > lookups.patience(address):
            receiver.fail(f"no prefill at bootstrap address {address}: {lookups.reason(address)}")
        else:
            waiting.append(request)
    queue.pending_reqs = waiting


def prefetch_ranks(original: Callable[..., Any], queue: Any) -> None:
    """SGLang asks ahead for the DP ranks of rooms; ``resolve_pending`` never waits for them."""
    from sglang_pd_fabric.integration.plugin import serves_us

    if not serves_us():
        original(queue)
