"""How a tensor-parallel group spreads KV heads over its ranks.

As SGLang's ``QKVParallelLinear`` does (sglang/srt/layers/linear.py): equal slices in the order of the
ranks; with fewer heads than ranks, neighbours hold the same head. One head, as for MLA, is on every rank.
"""

from typing import NamedTuple


class HeadSlice(NamedTuple):
    """Consecutive KV heads, numbered over all ranks."""

    first: int
    size: int

    def common(self, other: "HeadSlice") -> "HeadSlice":
        """The heads in both; a size of zero when there are none."""
        first = max(self.first, other.first)
        end = min(self.first + self.size, other.first + other.size)
        return HeadSlice(first, max(0, end - first))


def can_spread(kv_heads: int, tp_size: int) -> bool:
    """Whether SGLang can run so many heads on so many ranks."""
    return kv_heads % tp_size == 0 or tp_size % kv_heads == 0


def held_heads(kv_heads: int, tp_size: int, tp_rank: int) -> HeadSlice:
    """The heads that a rank holds, of ``kv_heads`` over all ranks."""
    if tp_size <= kv_heads:
        count = kv_heads // tp_size
        return HeadSlice(tp_rank * count, count)
    return HeadSlice(tp_rank // (tp_size // kv_heads), 1)
