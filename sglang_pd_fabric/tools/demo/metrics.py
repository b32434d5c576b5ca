"""Reads what the servers themselves count about KV transfers (SGLang's Prometheus metrics)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import httpx


@dataclass(frozen=True)
class Transfers:
    """Sums over all requests of one or several prefill servers."""

    requests: int = 0
    megabytes: float = 0.0
    milliseconds: float = 0.0

    @property
    def gigabytes_per_second(self) -> float:
        """The mean speed of one transfer; transfers that ran at the same time each count their own time."""
        return self.megabytes / 1024 / (self.milliseconds / 1000) if self.milliseconds else 0.0

    def __sub__(self, before: Transfers) -> Transfers:
        return Transfers(
            self.requests - before.requests,
            self.megabytes - before.megabytes,
            self.milliseconds - before.milliseconds,
        )


def sample_sums(exposition: str) -> dict[str, float]:
    """Sum the samples of a Prometheus page by name, over all labels."""
    from prometheus_client.parser import text_string_to_metric_families

    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def read_transfers(prefill_urls: Sequence[str]) -> Transfers:
    """Ask the prefill servers what they have sent since they started."""
    requests, megabytes, milliseconds = 0.0, 0.0, 0.0
    for url in prefill_urls:
        sums = sample_sums(httpx.get(f"{url}/metrics", timeout=30, follow_redirects=True).text)
        requests += sums.get("sglang:kv_transfer_total_mb_count", 0.0)
        megabytes += sums.get("sglang:kv_transfer_total_mb_sum", 0.0)
        milliseconds += sums.get("sglang:kv_transfer_latency_ms_sum", 0.0)
    return Transfers(int(requests), megabytes, milliseconds)
