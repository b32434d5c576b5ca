"""By what a CPU server draws tokens from a request's seed. With servers: test_first_token_servers.py."""

import struct

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang", reason="SGLang is not installed: pip install 'sglang-pd-fabric[sglang]'")
pytestmark = pytest.mark.sglang

WORD = 0xFFFFFFFF


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with the seed 0, of whole words."""

    def rotated(word: int, by: int) -> int:
        return (word << by | word >> 32 - by) & WORD

    state = 0
    for (word,) in struct.iter_unpack("<I", data):
        state ^= rotated(word * 0xCC9E2D51 & WORD, 15) * 0x1B873593 & WORD
        state = (rotated(state, 13) * 5 + 0xE6546B64) & WORD
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & WORD
    state = (state ^ state >> 13) * 0xC2B2AE35 & WORD
    return state ^ state >> 16


def test_the_hash_is_murmurs_of_seed_position_and_candidate() -> None:
    from sglang_pd_fabric.integration.cpu.seeds import murmur_hash32

    assert murmur3(b"test") == 0xBA6BD213  # a published value
    seeds, positions, candidates = [0, 1, -7, 2**63 - 1], [0, 149, 7, 8191], range(50)
    hashed = murmur_hash32(
        torch.tensor(seeds).to(torch.uint64), torch.tensor(positions), torch.arange(len(candidates))
    )
    for seed, position, row in zip(seeds, positions, hashed.tolist(), strict=True):
        assert row == [murmur3(struct.pack("<QII", seed % 2**64, position, each)) for each in candidates]


def test_a_seed_draws_the_same_beside_any_other_and_another_one_at_the_next_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sglang.srt.layers import sampler

    from sglang_pd_fabric.integration.cpu.seeds import murmur_hash32

    monkeypatch.setattr(sampler, "murmur_hash32", murmur_hash32)
    likely = torch.log_softmax(torch.randn(300, generator=torch.Generator().manual_seed(1)), 0)

    def drawn(seeds: list[int], positions: list[int]) -> list[int]:
        # Uncompiled, as on our platform.
        draw = sampler.multinomial_with_seed.__wrapped__
        rows = likely.expand(len(seeds), -1)
        return list(draw(rows, torch.tensor(seeds), torch.tensor(positions)).flatten().tolist())

    alone = [drawn([seed], [position])[0] for seed in (1, 2) for position in (5, 6)]
    assert len(set(alone)) == 4
    assert drawn([1, 1, 2, 2], [5, 6, 5, 6]) == alone
