"""Seeds of requests on a CPU server.

SGLang 0.5.23 looks at ``sampling_seed`` only with ``--enable-deterministic-inference``. That flag also asks
for kernels that give the same bits in a batch of any size, which there are for GPUs only; here it means the
seeds alone. A token is then drawn by a hash of the request's seed, the position of the step's input, and each
candidate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_WORD = 0xFFFFFFFF


def allow(attention_backend: str) -> None:
    """Let servers with this attention backend start with the flag, their prefix cache included."""
    from sglang.srt.arg_groups import choices

    if attention_backend not in choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES:
        choices.add_deterministic_attention_backend_choices([attention_backend])
        choices.add_radix_supported_deterministic_attention_backend_choices([attention_backend])


def keep_torch_kernels() -> None:
    """Leave matrix products to torch: SGLang's batch-invariant ones are written in Triton."""
    from sglang.srt import batch_invariant_ops

    batch_invariant_ops.enable_batch_invariant_mode = lambda: None


def hash_without_kernels() -> None:
    """Give SGLang's sampler the hash, of which it has a Triton form and one in a library that we lack."""
    from sglang.srt.layers import sampler

    sampler.murmur_hash32 = murmur_hash32


def murmur_hash32(seeds: torch.Tensor, positions: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 (x86, 32 bits) of seed (64 bits), position and candidate (32 each), as in SGLang's kernel.

    Args:
        seeds, positions: shape ``[requests]``.
        candidates: shape ``[candidates]``.

    Returns:
        Shape ``[requests, candidates]``, int64 from 0 to 2**32 - 1.
    """
    import torch

    seeds, positions = (each.to(torch.int64).unsqueeze(1) for each in (seeds, positions))
    state = torch.zeros_like(seeds)
    for block in (seeds, seeds >> 32, positions, candidates.to(torch.int64).unsqueeze(0)):
        mixed = _rotated((block & _WORD) * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
        state = (_rotated(state ^ mixed, 13) * 5 + 0xE6546B64) & _WORD
    state = state ^ 16  # bytes that were hashed
    state = (state ^ state >> 16) * 0x85EBCA6B & _WORD
    state = (state ^ state >> 13) * 0xC2B2AE35 & _WORD
    return state ^ state >> 16


def _rotated(words: torch.Tensor, by: int) -> torch.Tensor:
    return (words << by | words >> 32 - by) & _WORD
