"""The draw of a writer and of a NIC: uniform, independent, another one for each decode rank."""

import numpy as np
import pytest

from sglang_pd_fabric.messenger.sharding.draw import Draw, mix

DRAWS = 40_000
SALT = 0x1234_5678_9ABC_DEF0
ROOMS = {
    "counted": range(DRAWS),
    "aligned": range(0, DRAWS << 20, 1 << 20),
    "random": [int(room) for room in np.random.default_rng(4).integers(0, 2**63, DRAWS)],
}


def chi_square(counts: np.ndarray) -> float:
    """Pearson's statistic against a uniform distribution, in standard deviations from its mean."""
    wanted = counts.sum() / counts.size
    freedom = counts.size - 1
    return float(((counts - wanted) ** 2 / wanted).sum() - freedom) / (2 * freedom) ** 0.5


def counts(rooms: object, ranks: int, nics: int, salt: int = SALT, stage: int = 0) -> np.ndarray:
    table = np.zeros((ranks, nics), np.int64)
    for room in rooms:  # type: ignore[attr-defined]
        draw = Draw.of(room, salt, stage)
        table[draw.rank(ranks), draw.nic(nics)] += 1
    return table


# The rooms and the salt are fixed, so the statistic is a fixed number: this cannot flake.
@pytest.mark.parametrize("rooms", ROOMS)
@pytest.mark.parametrize(("ranks", "nics"), [(2, 1), (8, 1), (1, 4), (8, 4), (16, 8), (3, 5)])
def test_ranks_and_nics_are_uniform_and_independent(rooms: str, ranks: int, nics: int) -> None:
    table = counts(ROOMS[rooms], ranks, nics)
    assert chi_square(table) < 4  # every pair of a rank and a NIC: independence too
    if ranks > 1:
        assert chi_square(table.sum(axis=1)) < 4
    if nics > 1:
        assert chi_square(table.sum(axis=0)) < 4


def test_the_statistic_finds_a_draw_that_is_not_uniform() -> None:
    table = counts(ROOMS["counted"], 8, 1)
    table[0] += DRAWS // 50
    assert chi_square(table) > 4


@pytest.mark.parametrize("other", [(SALT + 1, 0), (SALT, 1)])
def test_decode_ranks_and_stages_draw_independently(other: tuple[int, int]) -> None:
    table = np.zeros((8, 8), np.int64)
    for room in range(DRAWS):
        table[Draw.of(room, SALT, 0).rank(8), Draw.of(room, *other).rank(8)] += 1
    assert chi_square(table) < 4


def test_the_mix_is_what_both_sides_of_any_version_must_compute() -> None:
    """The first outputs of SplitMix64 from seed 0, as published with it."""
    golden = 0x9E3779B97F4A7C15
    assert [mix(index * golden) for index in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
