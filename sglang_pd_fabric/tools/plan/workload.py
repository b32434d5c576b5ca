"""What users send: how long prompts and answers are, and when requests come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sglang_pd_fabric.tools.plan.errors import PlanError

Floats = NDArray[np.float64]
_FORMS = "a number (2000), uniform:LOW-HIGH (uniform:500-4000) or lognormal:MEDIAN,SIGMA (lognormal:1500,0.8)"


class Request(NamedTuple):
    """One request of a trace. Lengths in tokens."""

    number: int
    arrival_s: float
    prompt: int
    output: int


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths in tokens, always at least 1 and at most ``most``."""

    kind: str
    first: float
    second: float = 0.0
    most: int = 1 << 20

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        """So many lengths, whole numbers."""
        if self.kind == "fixed":
            drawn = np.full(count, self.first)
        elif self.kind == "uniform":
            drawn = rng.integers(int(self.first), int(self.second) + 1, count).astype(np.float64)
        else:
            drawn = rng.lognormal(np.log(self.first), self.second, count)
        lengths: Floats = np.clip(np.rint(drawn), 1, self.most)
        return lengths

    def mean(self) -> float:
        """The mean, before the cut at ``most``."""
        if self.kind == "uniform":
            return (self.first + self.second) / 2
        return float(self.first * np.exp(self.second**2 / 2)) if self.kind == "lognormal" else self.first


@dataclass(frozen=True)
class Workload:
    """Requests come as a Poisson stream of ``qps`` a second."""

    prompts: Lengths
    outputs: Lengths
    qps: float

    def trace(self, count: int, seed: int) -> list[Request]:
        """So many requests in the order of their arrival; the same for the same seed."""
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(rng.exponential(1 / self.qps, count))
        prompts, outputs = self.prompts.sample(rng, count), self.outputs.sample(rng, count)
        return list(_requests(arrivals, prompts, outputs))


def parse_lengths(flag: str, text: str) -> Lengths:
    """A distribution as it is written on the command line.

    Raises:
        PlanError: it is none; the message names the flag and the forms.
    """
    kind, _, rest = text.partition(":")
    try:
        if not rest:
            return _checked(Lengths("fixed", float(int(kind))))
        if kind == "uniform":
            low, high = map(int, rest.split("-"))
            return _checked(Lengths(kind, low, high))
        if kind == "lognormal":
            median, sigma = map(float, rest.split(","))
            return _checked(Lengths(kind, median, sigma))
    except ValueError:
        pass
    raise PlanError(f"{flag} {text}: not a distribution of tokens; give {_FORMS}")


def _checked(lengths: Lengths) -> Lengths:
    upside_down = lengths.kind == "uniform" and lengths.second < lengths.first
    if not 1 <= lengths.first <= lengths.most or not 0 <= lengths.second <= lengths.most or upside_down:
        raise ValueError
    if lengths.kind == "lognormal" and lengths.second > 4:
        raise ValueError
    return lengths


def _requests(arrivals: Floats, prompts: Floats, outputs: Floats) -> Iterator[Request]:
    for number, (arrival, prompt, output) in enumerate(zip(arrivals, prompts, outputs, strict=True)):
        yield Request(number, float(arrival), int(prompt), int(output))
