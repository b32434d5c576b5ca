"""A draw that everybody who knows the room makes alike, uniform over ranks and over NICs.

The mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
OOPSLA 2014): a bijection of 64 bits in which every input bit moves every output bit with a chance of about
one half, so that rooms 1, 2, 3, ... draw as well as random ones. Rank and NIC come from different halves of
the result, so neither says anything about the other.
"""

from typing import NamedTuple

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """64 well mixed bits of the low 64 bits of ``value``."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Draw(NamedTuple):
    """What was drawn for one room of one decode rank on one pipeline stage."""

    bits: int

    @classmethod
    def of(cls, room: int, salt: int, stage: int) -> "Draw":
        """The draw.

        Args:
            room: number of the request.
            salt: known to decode and to all its prefill ranks, different between decode ranks.
            stage: pipeline stage of the writers; stages draw independently.
        """
        return cls(mix(mix(mix(salt) ^ room) ^ stage))

    def rank(self, count: int) -> int:
        """One of ``count`` ranks, in [0, count)."""
        return (self.bits >> 32) * count >> 32

    def nic(self, count: int) -> int:
        """One of the ``count`` NICs of the rank that was drawn, in [0, count)."""
        return (self.bits & 0xFFFFFFFF) * count >> 32
