"""From objectives to numbers of servers: what one server of each kind carries, the ratio, the fleet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, exp, log, sqrt
from typing import NamedTuple

from sglang_pd_fabric.tools.plan.fleet import Fleet, Forecast
from sglang_pd_fabric.tools.plan.outcome import Outcome, Targets
from sglang_pd_fabric.tools.plan.workload import Workload

_HALVINGS = 16
_SERVERS = 8  # of the kind that is asked about
_IDLE = 32  # as many of the other kind, so that they are idle
_LEAST, _MOST = 1e-3, 1e4  # requests a second of one server
_PLENTY = 1e6  # seconds: an objective that is always met


class Sizing(NamedTuple):
    """Requests a second that one server of a kind carries within the objectives.

    0: not even the slowest stream.
    """

    prefill_qps: float
    decode_qps: float
    colocated_qps: float
    chunked_qps: float

    @property
    def ratio(self) -> float:
        """Decode servers for one prefill server."""
        return self.prefill_qps / self.decode_qps if self.decode_qps else 0.0

    def servers(self, qps: float) -> tuple[int, int]:
        """Prefill and decode servers for that stream; (0, 0) where no number is enough."""
        if not self.prefill_qps or not self.decode_qps:
            return 0, 0
        return ceil(qps / self.prefill_qps), ceil(qps / self.decode_qps)


def size(fleet: Fleet, workload: Workload, targets: Targets, seed: int = 0) -> Sizing:
    """What each kind of server carries, found by halving."""
    base = Forecast(fleet, workload, seed)
    # A request must be in time twice, so each side must do better than the share of both.
    each_share = sqrt(targets.share)
    first = replace(targets, tpot_s=_PLENTY, share=each_share)
    later = replace(targets, ttft_s=_PLENTY, share=each_share)

    def carried(outcome: Callable[[Forecast], Outcome], wanted: Targets) -> float:
        def enough(qps: float) -> bool:
            return outcome(base.at(_SERVERS * qps)).met(wanted) >= wanted.share

        return _largest(enough)

    return Sizing(
        carried(lambda each: each.disaggregated(_SERVERS, _IDLE * _SERVERS), first),
        carried(lambda each: each.disaggregated(_IDLE * _SERVERS, _SERVERS), later),
        carried(lambda each: each.colocated(_SERVERS, mixed=False), targets),
        carried(lambda each: each.colocated(_SERVERS, mixed=True), targets),
    )


def _largest(enough: Callable[[float], bool]) -> float:
    if not enough(_LEAST):
        return 0.0
    low, high = log(_LEAST), log(_MOST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(exp(middle)) else (low, middle)
    return exp(low)
