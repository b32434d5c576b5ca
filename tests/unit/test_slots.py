"""The slot table against a plain model of the core's counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.fabric.immediate import GENERATION_BITS, MAX_GENERATION, MAX_SLOTS, SLOT_BITS, UNIT_BITS
from sglang_pd_fabric.messenger.slots import NoFreeSlotError, Slot, SlotTable


class Words:
    """What the core keeps: a generation and a count for each slot."""

    def __init__(self, count: int) -> None:
        self.slot_count = count
        self.words = [[1, 0] for _ in range(count)]

    def slot_generation(self, slot: int) -> int:
        return self.words[slot][0]

    def slot_units(self, slot: int) -> int:
        return self.words[slot][1]

    def advance_slot(self, slot: int) -> int:
        following = self.words[slot][0] % MAX_GENERATION + 1
        self.words[slot] = [following, 0]
        return following


def test_the_immediate_has_32_bits_and_room_for_4096_requests_in_flight() -> None:
    assert SLOT_BITS + GENERATION_BITS + UNIT_BITS == 32
    assert MAX_SLOTS >= 4096


def test_a_slot_comes_back_with_another_generation() -> None:
    table = SlotTable(Words(1))
    first = table.take()
    table.give_back(first)
    second = table.take()
    assert second.index == first.index
    assert second.generation != first.generation


def test_a_quarantined_slot_is_not_handed_out_until_it_is_given_back() -> None:
    table = SlotTable(Words(2))
    failed = table.take()
    table.quarantine(failed)
    assert table.take().index != failed.index
    with pytest.raises(NoFreeSlotError, match="1 of them in quarantine"):
        table.take()
    table.give_back(failed)
    assert table.take().index == failed.index


def test_generations_return_as_late_as_possible() -> None:
    table = SlotTable(Words(4))
    seen = []
    for _ in range(4 * MAX_GENERATION):
        slot = table.take()
        seen.append(slot)
        table.give_back(slot)
    assert len(set(seen)) == len(seen)
    assert table.take() == seen[0]


@given(st.lists(st.sampled_from(["take", "give", "quarantine", "settle"]), max_size=60), st.randoms())
def test_no_two_owners_share_a_slot_and_none_is_lost(steps: list[str], random: object) -> None:
    table = SlotTable(Words(5))
    used: list[Slot] = []
    held: list[Slot] = []
    for step in steps:
        if step == "take" and table.free:
            used.append(table.take())
        elif step in ("give", "quarantine") and used:
            slot = used.pop(random.randrange(len(used)))  # type: ignore[attr-defined]
            if step == "give":
                table.give_back(slot)
            else:
                table.quarantine(slot)
                held.append(slot)
        elif step == "settle" and held:
            table.give_back(held.pop())
        owners = [slot.index for slot in (*used, *held)]
        assert len(set(owners)) == len(owners)
        assert (table.used, table.quarantined) == (len(used), len(held))
        assert table.free + len(owners) == 5
