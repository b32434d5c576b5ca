"""The answer as text, verdict first, and as JSON data."""

from collections.abc import Sequence
from dataclasses import asdict

from sglang_pd_fabric.tools.explain import phases as ph
from sglang_pd_fabric.tools.explain import rules
from sglang_pd_fabric.tools.explain.figures import Figures
from sglang_pd_fabric.tools.explain.rules import Verdict


def to_text(figures: Figures, verdicts: Sequence[Verdict]) -> str:
    """One screen."""
    lines = []
    for verdict in verdicts:
        lines.append(f"{verdict.kind.value.upper()}: {verdict.text}")
        lines += [f"    {fact}" for fact in verdict.evidence]
    return "\n".join(
        [*lines, "", *_first_token(figures), "", *_later_tokens(figures), "", *_transfers(figures)]
    )


def to_data(figures: Figures, verdicts: Sequence[Verdict]) -> dict[str, object]:
    """The same as JSON data; seconds, bytes and counts."""
    return {
        "verdicts": [
            {"kind": each.kind.name.lower(), "text": each.text, "evidence": list(each.evidence)}
            for each in verdicts
        ],
        "first_token": [phase._asdict() for phase in ph.phases(figures)],
        "figures": asdict(figures),
    }


def _first_token(figures: Figures) -> list[str]:
    whole, ttft = ph.total(figures), ph.first_token(figures)
    measured = f"{ttft.mean * 1e3:.1f} ms, mean of {ttft.count:.0f} streams" if ttft else "?"
    lines = [f"time to first token: {measured}"]
    for phase in ph.phases(figures):
        if phase.seconds is None:
            lines.append(f"  {phase.name:28s}        ?       {phase.source}")
        else:
            share = phase.seconds / whole if whole else 0.0
            lines.append(f"  {phase.name:28s} {phase.seconds * 1e3:8.1f} ms {share:4.0%}  {phase.source}")
    return [*lines, *(f"  {line}" for line in (rules.speed(figures),) if line)]


def _later_tokens(figures: Figures) -> list[str]:
    gaps, answers = figures.answers.gaps, figures.answers
    if gaps is None:
        lines = ["later tokens: cannot tell, sglang:inter_token_latency_seconds has nothing of this window"]
    else:
        lines = [
            f"later tokens: {gaps.mean * 1e3:.1f} ms mean, {gaps.p50 * 1e3:.1f} ms median, "
            f"{gaps.p99 * 1e3:.1f} ms 99 %, of {gaps.count:.0f}; {gaps.long_share:.0%} in long gaps"
        ]
    if answers.tokens is not None:
        lines.append(f"  {answers.tokens / figures.seconds:.1f} tokens/s generated")
    return [*lines, *(f"  {line}" for line in rules.history(figures))]


def _transfers(figures: Figures) -> list[str]:
    if not figures.disaggregated:
        return ["transfer: none, the servers compute prompts themselves"]
    return ["transfer:", *(f"  {line}" for line in rules.transfer(figures))]
