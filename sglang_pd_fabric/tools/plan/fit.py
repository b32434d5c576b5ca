"""Finds the constants again: least squares of the logarithms of all rows at once (damped Gauss-Newton).

No row has a constant of its own. Logarithms keep constants positive and weigh a row's error as a share.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sglang_pd_fabric.tools.plan.constants import CONSTANTS, FITTED, Constants
from sglang_pd_fabric.tools.plan.published import NIC_TABLE, Row, rows

_STEPS = 60
_NUDGE = 1e-4
_LIMIT = 0.5  # of a step, in logarithms
_FLOOR = 1e-3  # of a prediction that went to nothing
_MOST = {"expert_share": 1.0, "attention_share": 1.0, "fp8_speed": 2.0}


def fit(start: Constants = CONSTANTS) -> Constants:
    """The constants with the least sum of squares over all published rows that depend on them.

    A row's error counts in inverse proportion to the error that we state for it. Shares stay below what
    hardware can.
    """
    used = [row for row in rows() if row.source != NIC_TABLE]
    logs = np.log([getattr(start, name) for name in FITTED])
    damping, best = 1e-2, _residuals(used, _constants(start, logs))
    for _ in range(_STEPS):
        slope = np.array([_slope(used, start, logs, place, best) for place in range(len(FITTED))]).T
        normal = slope.T @ slope
        step = np.linalg.solve(normal + damping * np.eye(len(FITTED)), -slope.T @ best)
        tried = logs + np.clip(step, -_LIMIT, _LIMIT)
        after = _residuals(used, _constants(start, tried))
        if after @ after < best @ best:
            logs, best, damping = tried, after, damping / 3
        else:
            damping *= 4
    return _constants(start, logs)


def _constants(start: Constants, logs: NDArray[np.float64]) -> Constants:
    found = {name: float(np.exp(log)) for name, log in zip(FITTED, logs, strict=True)}
    return replace(start, **{name: min(value, _MOST.get(name, value)) for name, value in found.items()})


def _residuals(used: list[Row], constants: Constants) -> NDArray[np.float64]:
    return np.array([np.log(max(_FLOOR, 1 + row.error(constants))) / row.within for row in used])


def _slope(
    used: list[Row], start: Constants, logs: NDArray[np.float64], place: int, at: NDArray[np.float64]
) -> NDArray[np.float64]:
    moved = logs.copy()
    moved[place] += _NUDGE
    return (_residuals(used, _constants(start, moved)) - at) / _NUDGE
