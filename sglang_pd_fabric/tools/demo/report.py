"""The short table at the end of a run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sglang_pd_fabric.tools.demo.client import Answer
from sglang_pd_fabric.tools.demo.compare import largest_logprob_gap
from sglang_pd_fabric.tools.demo.metrics import Transfers


@dataclass(frozen=True)
class Timing:
    """Medians over the streamed answers, in milliseconds."""

    ttft: float
    tpot: float

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Timing:
        return cls(
            _median_ms(answer.ttft for answer in answers), _median_ms(answer.tpot for answer in answers)
        )


def _median_ms(seconds: Iterable[float | None]) -> float:
    known = [value for value in seconds if value is not None]
    return statistics.median(known) * 1000 if known else float("nan")


def print_report(
    reference: Sequence[Answer], cluster: Sequence[Answer], transfers: Transfers, backend: str, provider: str
) -> None:
    """Print what the answers took and what was moved for them."""
    from rich.console import Console
    from rich.table import Table

    ordinary, disaggregated = Timing.of(reference), Timing.of(cluster)
    table = Table(title=f"prefill/decode over {backend} ({provider}) and one ordinary server")
    table.add_column("")
    table.add_column("ordinary", justify="right")
    table.add_column("prefill/decode", justify="right")
    table.add_row("TTFT, median", f"{ordinary.ttft:.1f} ms", f"{disaggregated.ttft:.1f} ms")
    table.add_row("TPOT, median", f"{ordinary.tpot:.1f} ms", f"{disaggregated.tpot:.1f} ms")
    table.add_row("KV moved", "", f"{transfers.megabytes:.2f} MiB in {transfers.requests} requests")
    table.add_row("speed of a transfer, mean", "", f"{transfers.gigabytes_per_second:.3f} GiB/s")
    gap = largest_logprob_gap(reference, cluster)
    table.add_row("largest log-probability difference", "", f"{gap:.1e}")
    Console().print(table)
