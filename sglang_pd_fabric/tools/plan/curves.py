"""Goodput over offered load, for the same GPUs arranged in each way."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sglang_pd_fabric.tools.plan.fleet import Forecast
from sglang_pd_fabric.tools.plan.make import Question, forecast
from sglang_pd_fabric.tools.plan.simulate.run import Arrangement

_POINTS = 33
_BEYOND = 1.6  # of the load that is asked about


class Curve(NamedTuple):
    """One arrangement: offered and served-in-time requests a second."""

    arrangement: Arrangement
    offered: list[float]
    goodput: list[float]


def curves(question: Question, servers: tuple[int, int]) -> list[Curve]:
    """The closed forms' answers from almost no load to beyond the one that is asked about."""
    loads = [float(load) for load in question.workload.qps * np.linspace(_BEYOND / _POINTS, _BEYOND, _POINTS)]
    base = Forecast(question.fleet, question.workload, question.seed)
    found = []
    for each in Arrangement:
        goodput = [load * forecast(base.at(load), each, servers).met(question.targets) for load in loads]
        found.append(Curve(each, loads, goodput))
    return found
