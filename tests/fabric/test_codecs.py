"""Random plans, slots and generations through the real engine, against a plain model of what they mean."""

import numpy as np
from conftest import REGION, Pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node import copies

from sglang_pd_fabric.fabric import immediate
from sglang_pd_fabric.fabric.transfer import CopyTable

PAGES = 40
WIDEST = 3000
SLOTS = immediate.MAX_SLOTS
GENERATIONS = immediate.MAX_GENERATION


@st.composite
def tables(draw: st.DrawFn) -> CopyTable:
    """Up to 40 rows with sizes, offsets and strides of their own; no two of them write to one place."""
    rows = draw(st.integers(1, 40))
    table = copies(rows)
    room = WIDEST * 2 * PAGES
    for row in range(rows):
        nbytes = draw(st.integers(1, WIDEST))
        gap = st.just(0) | st.integers(0, WIDEST)
        table[row]["bytes"] = nbytes
        table[row]["src_stride"] = nbytes + draw(gap)
        table[row]["dst_stride"] = nbytes + draw(gap)
        table[row]["src_offset"] = draw(st.integers(0, REGION - room))
        table[row]["dst_offset"] = row * room + draw(st.integers(0, WIDEST))
    return table


def some_pages(unique: bool) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, PAGES - 2), min_size=PAGES - 1, max_size=PAGES - 1, unique=unique)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(table=tables(), src=some_pages(False), dst=some_pages(True), count=st.integers(1, PAGES - 1))
def test_a_plan_does_what_its_table_means(
    pair: Pair, table: CopyTable, src: list[int], dst: list[int], count: int
) -> None:
    src, dst = src[:count], dst[:count]
    assert np.array_equal(pair.deliver(table, src, dst), pair.expected(table, src, dst))


class Model:
    """What the receiver's slots hold: generation and units, counted in Python."""

    def __init__(self) -> None:
        self.slots: dict[int, tuple[int, int]] = {}

    def advance(self, slot: int) -> int:
        generation = self.slots.get(slot, (1, 0))[0] % GENERATIONS + 1
        self.slots[slot] = generation, 0
        return generation

    def count(self, slot: int, generation: int, units: int) -> None:
        owner, counted = self.slots.get(slot, (1, 0))
        self.slots[slot] = owner, counted + units * (owner == generation)


MOVES = st.tuples(
    st.sampled_from([0, 1, 2, SLOTS // 2, SLOTS - 2, SLOTS - 1]),
    st.integers(1, GENERATIONS) | st.sampled_from([1, 2, GENERATIONS]),
    st.sampled_from([1, 2, immediate.MAX_UNITS, immediate.MAX_UNITS + 1]) | st.integers(1, 3000),
    st.booleans(),
)


def test_immediates_count_for_their_slot_and_generation_and_for_nothing_else(fresh_pair: Pair) -> None:
    pair, model, row = fresh_pair, Model(), copies(bytes=1)
    row["src_stride"] = row["dst_stride"] = 1

    def settle() -> None:
        """What was sent before on this connection has been counted when this has."""
        last = SLOTS // 3
        generation = model.slots.get(last, (1, 0))[0]
        page = np.zeros(1, np.uint32)
        pair.sender.ask("send", pair.peer, last, row, page, page, generation)
        model.count(last, generation, 1)
        pair.receiver.ask("await_units", last, model.slots[last][1])

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(MOVES, min_size=1, max_size=12))
    def hold(moves: list[tuple[int, int, int, bool]]) -> None:
        for slot, generation, units, advance in moves:
            if advance:
                settle()  # what claims the generation that comes next has to be too early for it
                assert pair.receiver.ask("advance", slot) == model.advance(slot)
            owner = model.slots.get(slot, (1, 0))[0]
            claimed = owner if generation % 2 else generation
            pages = np.arange(units, dtype=np.uint32)
            transfer = pair.sender.ask("send", pair.peer, slot, row, pages, pages, claimed)
            assert pair.sender.ask("finish", transfer).error == 0
            pair.sender.ask("release", transfer)
            model.count(slot, claimed, units)
        settle()
        for slot, (generation, units) in model.slots.items():
            assert pair.receiver.ask("generation", slot) == generation
            assert pair.receiver.ask("units", slot) == units

    hold()
    assert pair.receiver.ask("stats").immediates_unknown == 0
