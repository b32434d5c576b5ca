"""The hooks that count: whose first tokens are, what grammars are asked for, what is sampled."""

from collections.abc import Callable
from typing import Any

from sglang_pd_fabric.integration.plugin import serves_us
from sglang_pd_fabric.messenger.states import FirstToken


def count_decision(decision: FirstToken, reason: str | None) -> None:
    """Counts a request, once on each server: the other ranks of its group decide the same."""
    from sglang.srt.runtime_context import get_parallel

    from sglang_pd_fabric.integration import metrics

    if get_parallel().attn_tp_rank == 0:
        metrics.count_first_token(decision, reason or "")


def count_grammar(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if serves_us():
        from sglang_pd_fabric.integration import metrics

        metrics.count_grammar()
    return original(*args, **kwargs)


def count_samples(original: Callable[..., Any], runner: Any, logits: Any, batch: Any, *args: Any) -> Any:
    if serves_us():
        from sglang_pd_fabric.integration import metrics

        metrics.count_samples(batch.batch_size)
    return original(runner, logits, batch, *args)
