"""Credits: what decode grants together never exceeds its completion queue."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.messenger.credits import Credits


@pytest.mark.parametrize("name", PROFILES)
def test_a_few_prefill_ranks_get_all_that_they_would_use(name: str) -> None:
    credits = Credits(PROFILES[name])
    assert [credits.grant() for _ in range(8)] == [PROFILES[name].peer_window] * 8


@given(
    entries=st.integers(2, 20_000),
    most=st.integers(1, 512),
    gone=st.lists(st.booleans(), min_size=1, max_size=300),
)
def test_whoever_comes_and_goes_the_queue_is_never_granted_twice(
    entries: int, most: int, gone: list[bool]
) -> None:
    room = entries - 1
    credits = Credits(replace(PROFILES["efa"], queue_entries=entries, window=1, peer_window=most))
    granted: list[int] = []
    for leaves in gone:
        if leaves and granted:
            credits.give_back(granted.pop(0))
        granted.append(credits.grant())
        assert 0 <= granted[-1] <= most
        assert sum(granted) <= room
        assert granted[-1] > 0 or sum(granted) == room
