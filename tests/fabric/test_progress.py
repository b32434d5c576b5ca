"""Plans that wait for the progress word: what is posted when, and what happens when it never moves."""

import errno
import time
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import Pair, World
from node import copies

LAYERS, PAGES, PAGE = 6, 40, 3000
FORWARDS = 5  # that a test may use


def layers(first_after: int = 1) -> np.ndarray:
    """A row for each layer, which waits for that layer."""
    table = copies(LAYERS, bytes=PAGE, src_stride=PAGE, dst_stride=PAGE)
    table["src_offset"] = table["dst_offset"] = np.arange(LAYERS) * PAGES * PAGE
    table["after"] = np.arange(LAYERS) + first_after
    return table


PAGE_IDS = np.random.default_rng(3).permutation(PAGES).astype(np.uint32)


class Counting(Pair):
    forward = 0

    def start(self, table: np.ndarray, forward: int) -> tuple[int, int]:
        """A waiting transfer and its slot."""
        slot = self.slot()
        return self.sender.ask("send", self.peer, slot, table, PAGE_IDS, PAGE_IDS, 1, forward), slot

    def units(self, slot: int) -> int:
        """What the slot has, after all that could be posted was: a later transfer has passed by."""
        self.deliver(layers()[:1], PAGE_IDS[:1], PAGE_IDS[:1])
        return self.receiver.ask("units", slot)


@pytest.fixture(scope="session")
def processes(world: World) -> Iterator[Counting]:
    with world.node(trace=4096, stall=1.0) as sender, world.node() as receiver:
        yield Counting.join(sender, receiver)


@pytest.fixture
def counting(processes: Counting) -> Counting:
    """The word only grows: each test has forward passes of its own, and nothing of an earlier one is left."""
    processes.forward += FORWARDS
    processes.sender.ask("progress", processes.forward - 2, 0)
    processes.sender.ask("take_trace")
    return processes


def test_each_layer_goes_when_it_is_done_and_not_before(counting: Counting) -> None:
    early = counting.sender.ask("stats").units_early
    transfer, slot = counting.start(layers(), counting.forward)
    assert counting.units(slot) == 0
    for done in range(1, LAYERS + 1):
        counting.sender.ask("progress", counting.forward, done)
        assert counting.receiver.ask("await_units", slot, done * PAGES) == done * PAGES
        assert counting.units(slot) == done * PAGES
    status = counting.sender.ask("finish", transfer)
    assert (status.error, status.units_done) == (0, LAYERS * PAGES)
    assert counting.sender.ask("stats").units_early == early + LAYERS * PAGES


def test_the_word_may_jump_and_an_earlier_forward_pass_moves_nothing(counting: Counting) -> None:
    _, slot = counting.start(layers(), counting.forward)
    counting.sender.ask("progress", counting.forward - 1, LAYERS)
    assert counting.units(slot) == 0
    counting.sender.ask("progress", counting.forward, 0)
    assert counting.units(slot) == 0
    counting.sender.ask("progress", counting.forward, 4)
    assert counting.receiver.ask("await_units", slot, 4 * PAGES) == 4 * PAGES
    assert counting.units(slot) == 4 * PAGES


def test_a_later_forward_pass_releases_all_of_an_earlier_one(counting: Counting) -> None:
    first, slot = counting.start(layers(), counting.forward)
    _, waiting = counting.start(layers(), counting.forward + 2)
    counting.sender.ask("progress", counting.forward + 1, 0)
    assert counting.sender.ask("finish", first).error == 0
    assert counting.receiver.ask("await_units", slot, LAYERS * PAGES) == LAYERS * PAGES
    assert counting.units(waiting) == 0


def test_what_needs_no_step_goes_before_the_forward_pass_begins(counting: Counting) -> None:
    _, slot = counting.start(layers(first_after=0), counting.forward)
    assert counting.receiver.ask("await_units", slot, PAGES) == PAGES
    assert counting.units(slot) == PAGES


def test_waiting_for_a_forward_pass_is_no_stall(counting: Counting) -> None:
    """The sender gives up on a peer after a second without progress; here it has nothing to give it."""
    transfer, slot = counting.start(layers(), counting.forward)
    time.sleep(1.5)
    assert counting.sender.ask("status", transfer).error == 0
    counting.sender.ask("progress", counting.forward, LAYERS)
    assert counting.receiver.ask("await_units", slot, LAYERS * PAGES) == LAYERS * PAGES


def test_the_time_of_a_transfer_stands_still_while_it_waits(counting: Counting) -> None:
    transfer, slot = counting.start(layers(), counting.forward)
    counting.sender.ask("progress", counting.forward, 2)
    counting.receiver.ask("await_units", slot, 2 * PAGES)
    counting.units(slot)
    counting.sender.ask("await_sleeps", 20)
    waiting = counting.sender.ask("status", transfer).busy_ns
    counting.sender.ask("await_sleeps", 100)
    assert counting.sender.ask("status", transfer).busy_ns == waiting > 0
    counting.sender.ask("progress", counting.forward, LAYERS)
    assert counting.sender.ask("finish", transfer).busy_ns > waiting


def test_a_cancelled_transfer_does_not_wait_any_more(counting: Counting) -> None:
    transfer, slot = counting.start(layers(), counting.forward)
    counting.sender.ask("progress", counting.forward, 2)
    counting.receiver.ask("await_units", slot, 2 * PAGES)
    counting.sender.ask("cancel", transfer)
    assert counting.sender.ask("finish", transfer).units_done == 2 * PAGES
    counting.sender.ask("progress", counting.forward, LAYERS)
    assert counting.units(slot) == 2 * PAGES


def test_a_transfer_that_takes_too_long_fails_however_well_it_goes(world: World) -> None:
    with world.node(limit=3.0, stall=60.0) as sender, world.node() as receiver:
        pair = Counting.join(sender, receiver)
        pair.deliver(layers(), PAGE_IDS, PAGE_IDS)
        receiver.freeze()
        many = np.arange(2000, dtype=np.uint32)
        rows = copies(40, bytes=2000, src_stride=2000, dst_stride=4000)
        transfer = sender.ask("send", pair.peer, pair.slot(), rows, many, many)
        assert sender.ask("end", transfer).error == -errno.ETIMEDOUT
        receiver.thaw()
        sender.ask("finish", transfer)


def test_closing_with_time_to_drain_delivers_what_was_submitted(world: World) -> None:
    with world.node() as sender, world.node() as receiver:
        pair = Counting.join(sender, receiver)
        table, many = (
            copies(40, bytes=2000, src_stride=2000, dst_stride=4000),
            np.arange(2000, dtype=np.uint32),
        )
        sender.ask("send", pair.peer, 1, table, many, many)
        sender.ask("close", 60.0)
        assert receiver.ask("await_units", 1, 80_000) == 80_000


def test_the_trace_tells_what_happened_in_order(counting: Counting) -> None:
    transfer, slot = counting.start(layers(), counting.forward)
    for done in (1, 3, LAYERS):
        counting.sender.ask("progress", counting.forward, done)
        counting.receiver.ask("await_units", slot, done * PAGES)
    counting.sender.ask("finish", transfer)
    events = [
        event for event in counting.sender.ask("take_trace") if event.kind == "step" or event.slot == slot
    ]
    assert [event.ns for event in events] == sorted(event.ns for event in events)
    shown, posted, done = 0, 0, 0
    for event in events:
        if event.kind == "step":
            assert (event.forward, event.steps) > (0, shown)
            shown = event.steps
        elif event.kind == "post":
            assert event.after <= shown
            posted += event.units
        else:
            done += event.units
            assert done <= posted
    assert (shown, posted, done) == (LAYERS, LAYERS * PAGES, LAYERS * PAGES)
    assert counting.sender.ask("take_trace") == []
    assert counting.sender.ask("stats").trace_lost == 0
