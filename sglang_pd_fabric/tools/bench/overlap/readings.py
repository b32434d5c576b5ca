"""What the measuring processes of the overlap bench answer: plain data that goes through JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict


class Way(NamedTuple):
    """One transfer that belongs to one forward pass.

    Attributes:
        hidden_units: pages of layers that the receiver had counted when the pass ended.
        exposed_ns: from the end of the pass until the receiver had counted all.
    """

    hidden_units: int
    exposed_ns: int


class Reading(NamedTuple):
    """One repetition: the same pages without a forward pass, layer by layer, and at the pass's end."""

    alone_ns: int
    pass_ns: int
    layerwise: Way
    chunkwise: Way

    @classmethod
    def from_json(cls, values: list[object]) -> Reading:
        alone, length, *ways = values
        layerwise, chunkwise = (Way(*way) for way in ways)  # type: ignore[misc]
        return cls(alone, length, layerwise, chunkwise)  # type: ignore[arg-type]


class Quantiles(TypedDict):
    """Microseconds."""

    p50: float
    p99: float
    p999: float
    max: float
    samples: int


class Delays(NamedTuple):
    """From the store of a progress word to the first post that waited for it, with and without a sleep."""

    spinning: Quantiles
    sleeping: Quantiles


def quantiles(delays_ns: Sequence[int]) -> Quantiles:
    """Of the samples in order: the smallest that so many are not above."""
    ordered = sorted(delays_ns)

    def at(per_mille: int) -> float:
        return ordered[max(0, -(-len(ordered) * per_mille // 1000) - 1)] / 1e3

    return Quantiles(p50=at(500), p99=at(990), p999=at(999), max=at(1000), samples=len(ordered))
