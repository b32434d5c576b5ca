"""The hooks that count: whose first tokens are, what grammars are asked for, what is sampled."""

from collections.abc import Callable
from typing import Any

from prometheus_client import Counter

from sglang_pd_fabric.integration.plugin import serves_us
from sglang_pd_fabric.messenger.messages import FirstToken

_first_tokens = Counter(
    "sglang_pd_fabric:first_token",
    "Requests by who computes their first token, and why where it is prefill",
    ["mode", "reason"],
)
_grammars = Counter("sglang_pd_fabric:grammars", "Requests for which this server has asked for a grammar")
_sampled = Counter("sglang_pd_fabric:sampled_rows", "Rows of logits that this server's sampler has seen")


def count_decision(decision: FirstToken, reason: str | None) -> None:
    """Counts a request, once on each server: the other ranks of its group decide the same."""
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().attn_tp_rank == 0:
        _first_tokens.labels(decision, reason or "").inc()


def count_grammar(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if serves_us():
        _grammars.inc()
    return original(*args, **kwargs)


def count_samples(original: Callable[..., Any], runner: Any, logits: Any, batch: Any, *args: Any) -> Any:
    if serves_us():
        _sampled.inc(batch.batch_size)
    return original(runner, logits, batch, *args)
