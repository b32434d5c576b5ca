"""Immediates over a real wire: kept when they come early, never counted for a newer owner."""

import numpy as np
from conftest import Pair
from node import copies

PAGES = np.arange(0, 20, 2, dtype=np.uint32)
TABLE = copies(bytes=32, src_stride=32, dst_stride=32)


def test_immediates_that_come_before_anybody_looks_are_kept(pair: Pair) -> None:
    early, other = pair.slot(), pair.slot()
    pair.sender.ask("finish", pair.sender.ask("send", pair.peer, early, TABLE, PAGES, PAGES))
    pair.sender.ask("send", pair.peer, other, TABLE, PAGES, PAGES)
    pair.receiver.ask("await_units", other, 10)  # comes after the first on one connection
    assert pair.receiver.ask("units", early) == 10


def test_late_immediate_is_not_counted_for_the_new_owner(pair: Pair) -> None:
    slot, other = pair.slot(), pair.slot()
    late = pair.receiver.ask("stats").immediates_late
    old = pair.receiver.ask("generation", slot)
    new = pair.receiver.ask("advance", slot)
    pair.sender.ask("send", pair.peer, slot, TABLE, PAGES, PAGES, old)
    pair.sender.ask("send", pair.peer, other, TABLE, PAGES, PAGES)
    pair.receiver.ask("await_units", other, 10)
    assert pair.receiver.ask("units", slot) == 0
    assert pair.receiver.ask("stats").immediates_late > late
    pair.sender.ask("send", pair.peer, slot, TABLE, PAGES, PAGES, new)
    assert pair.receiver.ask("await_units", slot, 10) == 10


def test_a_slot_serves_more_owners_than_there_are_generations(pair: Pair) -> None:
    slot, generation = pair.slot(), 1
    for _ in range(130):
        pair.sender.ask("send", pair.peer, slot, TABLE, PAGES, PAGES, generation)
        assert pair.receiver.ask("await_units", slot, 10) == 10
        generation = pair.receiver.ask("advance", slot)
        assert 1 <= generation <= 127
    assert generation == 4
