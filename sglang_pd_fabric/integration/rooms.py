"""Which requests are taken in: clients and routers choose room numbers, so they are not to be trusted.

Hooks on the doors of both queues. They run before SGLang has made anything of the request, on every rank
alike: what they ask is changed on the scheduler's thread only, at the same step of each rank.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sglang_pd_fabric.integration.first_token.decision import whole_prompt

IN_USE = "is in use by another request"
NO_HOST = "it must name the prefill's bootstrap server, as a router does"
EMPTY = "the prompt is empty"  # prefill would have no page to send, and SGLang's scheduler ends with that


def refusal(room: Any, live: set[int]) -> str | None:
    """Why a request with this room cannot be taken in, or None."""
    if not isinstance(room, int) or not 0 < room < 1 << 63:
        return f"bootstrap_room is {room!r}; it must be a number from 1 to 2^63 - 1"
    if room in live:
        return f"bootstrap_room {room} {IN_USE}; each needs its own"
    return None


def host_refusal(host: Any) -> str | None:
    """Why nobody can be asked for a request's pages, or None. SGLang's decode would end with that."""
    if isinstance(host, str) and host:
        return None
    return f"bootstrap_host is {host!r}; {NO_HOST}"


def digest(tokens: Sequence[int]) -> int:
    """Tells prompts apart: a number from 1 to 2^64 - 1."""
    data = np.asarray(tokens, "<u4").tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()) or 1


def never_fits(queue: Any, req: Any) -> str | None:
    """Why decode could never take a request in, however empty it is: SGLang leaves it waiting for ever."""
    capacity, reserve = queue.max_total_num_tokens, queue.num_reserved_decode_tokens
    needed = queue._required_alloc_tokens(fill_len=queue._pre_alloc_fill_len(req), prefix_len=0) + reserve
    if needed <= capacity or queue.scheduler.enable_hisparse:
        return None
    tokens = len(req.origin_input_ids)
    return (
        f"the prompt has {tokens} tokens; in whole pages, with the {reserve} that decode keeps for an "
        f"answer, these are {needed}, and its KV pool has {capacity}"
    )


def enter(original: Callable[..., Any], queue: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """Around ``add`` of prefill's and decode's first queue: answers 400 to what cannot be transferred."""
    from sglang_pd_fabric.integration.plugin import serves_us

    if not serves_us():
        return original(queue, req, *args, **kwargs)
    queue.kv_manager.entering = req
    try:
        return _enter(original, queue, req, *args, **kwargs)
    finally:
        queue.kv_manager.entering = None


def _enter(original: Callable[..., Any], queue: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    from http import HTTPStatus

    from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST, is_aborted, prepare_abort

    on_decode = type(queue).__name__ == "DecodePreallocQueue"
    again = any(args) if on_decode else req.is_retracted
    again = again or any(kwargs.get(name) for name in ("is_retracted", "is_rebootstrap"))
    if on_decode:
        queue.kv_manager.launched.of(queue)
    if not again and not is_aborted(req) and req.bootstrap_host != FAKE_BOOTSTRAP_HOST:
        manager = queue.kv_manager
        reason = refusal(req.bootstrap_room, manager.live_rooms) or host_refusal(req.bootstrap_host)
        if len(req.origin_input_ids) == 0:
            reason = EMPTY
        elif reason is None and on_decode:
            reason = never_fits(queue, req)
        if reason is not None:
            prepare_abort(req, reason, status_code=HTTPStatus.BAD_REQUEST)
            queue.scheduler.retire_unadmitted_request(req)
            return None
        manager.prompts[req.bootstrap_room] = digest(whole_prompt(req))
        original(queue, req, *args, **kwargs)
        if req.bootstrap_room not in manager.live_rooms:  # SGLang has refused it
            manager.prompts.pop(req.bootstrap_room, None)
        return None
    return original(queue, req, *args, **kwargs)
