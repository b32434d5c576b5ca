"""The few numbers that all predictions rest on, the same for every model, GPU and published row.

Three are taken from others or held at a limit, the rest were found by ``sglang-pd-fabric plan --fit`` from
the rows of ``published``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """Shares are of the data sheet's peak."""

    # Not fitted. What cuBLAS reaches on large bf16 products (0.6 to 0.7 on Hopper).
    dense_share: float = 0.65
    # Not fitted. Bus bandwidth of nccl-tests' all_reduce inside a node, about 0.78 of NVLink on A100 and
    # H100.
    link_share: float = 0.78
    # Not fitted. Reading weights and KV cache; plain copies reach 0.9 on Hopper. Left free, the fit takes
    # more.
    memory_share: float = 0.9
    # Products of mixtures of experts: narrow ones, many at once.
    expert_share: float = 0.2104
    # Speed of products with fp8 weights, 1 being that of bf16. Rests on R1 at TP8 alone, whose slices are
    # narrow.
    fp8_speed: float = 0.6331
    # Attention of a prompt.
    attention_share: float = 0.6321
    # A product with that many rows runs at half of its speed with very many.
    half_rows: float = 118.0
    # Each layer, whatever is in the batch: launches, gaps, latency of collectives. Seconds.
    layer_s: float = 130.1e-6
    # From the end of a layer to its pages on the other side, however few. Seconds.
    handoff_s: float = 338.5e-6
    # Posting one page, by one thread. Seconds.
    page_s: float = 1.236e-6
    # From the last page to the decode server's pass with the request: metadata, control, scheduling. Seconds.
    join_s: float = 69.7e-3


FITTED = (
    "expert_share",
    "fp8_speed",
    "attention_share",
    "half_rows",
    "layer_s",
    "handoff_s",
    "page_s",
    "join_s",
)
CONSTANTS = Constants()
