"""Which rooms are taken in, and which room each sample of a prompt gets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.integration.http.samples import room_of
from sglang_pd_fabric.integration.rooms import refusal

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
