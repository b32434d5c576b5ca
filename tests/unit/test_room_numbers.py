"""Which rooms are taken in, and which room each sample of a prompt gets."""

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.integration.http.samples import room_of
from sglang_pd_fabric.integration.rooms import digest, refusal
from sglang_pd_fabric.messenger.messages import Pull
from sglang_pd_fabric.messenger.rooms import disagreement

ROOMS = st.integers(min_value=1, max_value=(1 << 63) - 1)


@given(ROOMS)
def test_every_room_that_fits_is_taken_in_once(room: int) -> None:
    assert refusal(room, set()) is None
    assert "in use" in (refusal(room, {room}) or "")


@pytest.mark.parametrize("room", [0, -1, 1 << 63, 1 << 64, None, "7", 1.5, []])
def test_what_does_not_fit_is_refused_with_its_value(room: Any) -> None:
    assert repr(room) in (refusal(room, set()) or "")


@given(ROOMS)
def test_samples_of_a_prompt_have_rooms_of_their_own_that_fit(room: int) -> None:
    rooms = [room_of(room, number) for number in range(20)]
    assert rooms[0] == room
    assert len(set(rooms)) == 20
    assert not any(refusal(each, set()) for each in rooms)


def test_prompts_are_told_apart() -> None:
    prompts = [[1, 2, 3], [1, 2], [1, 2, 4], [3, 2, 1], array("q", [1, 2, 3, 0]), []]
    digests = [digest(prompt) for prompt in prompts]
    assert len(set(digests)) == len(prompts)
    assert digest(array("q", [1, 2, 3])) == digest([1, 2, 3])
    assert all(0 < each < 1 << 64 for each in digests)


def test_a_pull_for_another_prompt_in_the_same_room_is_refused() -> None:
    pull = Pull(1, 7, 0, 1, b"\0" * 8, 0, 0, 1, prompt=5)
    assert disagreement(pull, 2, 5, "prefill") is None
    assert disagreement(pull, 2, 0, "prefill") is None
    assert "another prompt" in (disagreement(pull, 2, 6, "prefill") or "")
    assert "3 pages" in (disagreement(pull, 3, 5, "prefill") or "")
