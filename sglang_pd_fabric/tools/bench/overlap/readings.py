"""What the measuring processes of the overlap bench answer: plain data that goes through JSON."""

from __future__ import annotations

from typing import NamedTuple


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


class Delays(NamedTuple):
    """Nanoseconds from the store of a progress word to the first post that waited for it, layer by layer."""

    spinning: list[int]
    sleeping: list[int]
