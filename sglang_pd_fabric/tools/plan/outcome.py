"""What users of a fleet see: times to first token and between tokens, and which requests are in time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sglang_pd_fabric.tools.plan.workload import Floats


@dataclass(frozen=True)
class Targets:
    """Service level objectives, seconds, and the share of requests that must meet both."""

    ttft_s: float
    tpot_s: float
    share: float = 0.9


@dataclass(frozen=True)
class Outcome:
    """One value for each request. ``busy``: share of time that the servers of each kind compute, by kind.

    ``settled`` is False where more comes than the servers can do; times are then those of a queue that still
    grows.
    """

    ttft_s: Floats
    tpot_s: Floats
    busy: dict[str, float]
    settled: bool = True

    def met(self, targets: Targets) -> float:
        """Share of requests in time, 0 where the fleet never settles."""
        good = (self.ttft_s <= targets.ttft_s) & (self.tpot_s <= targets.tpot_s)
        return float(np.mean(good)) if self.settled else 0.0

    def figures(self, qps: float, targets: Targets) -> dict[str, float | bool]:
        """The numbers that are shown; no times where the fleet never settles.

        Goodput is requests a second that are served in time.
        """
        met = self.met(targets)
        if not self.settled:
            return {"met": met, "goodput_qps": 0.0, "settled": False}
        return {
            "ttft_mean_ms": 1e3 * float(np.mean(self.ttft_s)),
            "ttft_p50_ms": 1e3 * float(np.quantile(self.ttft_s, 0.5)),
            "ttft_p95_ms": 1e3 * float(np.quantile(self.ttft_s, 0.95)),
            "tpot_mean_ms": 1e3 * float(np.mean(self.tpot_s)),
            "tpot_p95_ms": 1e3 * float(np.quantile(self.tpot_s, 0.95)),
            "met": met,
            "goodput_qps": qps * met,
            "settled": self.settled,
            **{f"busy_{kind}": share for kind, share in self.busy.items()},
        }
