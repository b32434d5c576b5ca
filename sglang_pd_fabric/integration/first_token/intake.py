"""The hook at which both sides decide, right before a request is queued."""

import functools
from collections.abc import Callable
from typing import Any

from sglang_pd_fabric.integration.first_token.counters import count_decision
from sglang_pd_fabric.integration.first_token.decision import DECISION, stock_reason
from sglang_pd_fabric.integration.first_token.prefill import put_last_token_aside
from sglang_pd_fabric.integration.plugin import serves_us
from sglang_pd_fabric.settings import load_settings


def take_in(original: Callable[..., bool], grammars: Any, req: Any) -> bool:
    """Decides, and keeps grammars away from a prefill that needs none. Returns whether one is compiled."""
    from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST
    from sglang.srt.runtime_context import get_disagg

    # SGLang's own requests (warm-up, health) transfer nothing, and are nobody's to decide about.
    if not serves_us() or req.bootstrap_host in (None, FAKE_BOOTSTRAP_HOST):
        return original(grammars, req)
    reason = stock_reason(req, grammars.scheduler, _setting())
    setattr(req, DECISION, "decode" if reason is None else "prefill")
    count_decision(getattr(req, DECISION), reason)
    if reason is None and get_disagg().disaggregation_mode == "prefill":
        put_last_token_aside(req)
        return False
    return original(grammars, req)


@functools.cache
def _setting() -> str:
    return load_settings().first_token
