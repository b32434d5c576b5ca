"""Pages arrive whole: what the receiver sees at the moment its count is full is what was sent."""

import numpy as np
import pytest
from conftest import REGION, Pair
from node import copies

COUNTS = [*range(1, 41), 63, 64, 65]
FEW_COUNTS = [1, 2, 15, 16, 17, 31, 32, 33, 40]


@pytest.mark.parametrize("nbytes", [1, 3, 64, 4096, 65537, 1 << 20, 8 << 20])
def test_every_number_of_pages_of_every_size_is_complete_when_the_count_is(pair: Pair, nbytes: int) -> None:
    counts = {64: COUNTS, 4096: COUNTS, 1 << 20: [1, 16, 33], 8 << 20: [1, 2]}.get(nbytes, FEW_COUNTS)
    table = copies(bytes=nbytes, src_stride=nbytes, dst_stride=nbytes)
    random = np.random.default_rng(nbytes)
    for count in counts:
        room = min(REGION // nbytes, 2 * count)
        src, dst = random.permutation(room)[:count], random.permutation(room)[:count]
        got = pair.deliver(table, src, dst)
        assert np.array_equal(got, pair.expected(table, src, dst)), f"{count} pages of {nbytes} bytes"


def test_layers_with_unaligned_offsets_and_strides_of_their_own_arrive(pair: Pair) -> None:
    random = np.random.default_rng(5)
    table = copies(24, bytes=random.integers(1, 5000, 24))
    table["src_stride"] = table["bytes"] + random.integers(0, 2, 24) * 13
    table["dst_stride"] = table["bytes"] + random.integers(0, 2, 24) * 7
    table["src_offset"] = np.arange(24) * 500_001 + 1
    table["dst_offset"] = np.arange(24) * 600_007 + 3
    src, dst = random.permutation(90)[:33], random.permutation(100)[:33]
    assert np.array_equal(pair.deliver(table, src, dst), pair.expected(table, src, dst))


def test_contiguous_runs_still_count_every_page(pair: Pair) -> None:
    table = copies(2, bytes=512, src_stride=512, dst_stride=512, dst_offset=[0, 8 << 20])
    pages = np.arange(10_000)
    assert np.array_equal(pair.deliver(table, pages, pages + 7), pair.expected(table, pages, pages + 7))


def test_the_last_byte_of_the_region_can_be_written(pair: Pair) -> None:
    nbytes = 40_961
    table = copies(bytes=nbytes, src_offset=REGION - nbytes, dst_offset=REGION - nbytes)
    got = pair.deliver(table, [0], [0])
    assert np.array_equal(got, pair.expected(table, [0], [0]))


def test_zero_pages_are_done_at_once_and_count_nothing(pair: Pair) -> None:
    slot, none = pair.slot(), np.zeros(0, np.uint32)
    transfer = pair.sender.ask("send", pair.peer, slot, copies(3, bytes=64), none, none)
    status = pair.sender.ask("finish", transfer)
    assert (status.error, status.units_done, status.writes_done) == (0, 0, 0)
    assert pair.receiver.ask("units", slot) == 0


def test_a_second_plan_of_a_transfer_counts_in_the_same_slot(pair: Pair) -> None:
    slot, table = pair.slot(), copies(bytes=100, src_stride=100, dst_stride=100)
    pages = np.arange(0, 50, 2, dtype=np.uint32)
    transfer = pair.sender.ask("send", pair.peer, slot, table, pages, pages)
    pair.sender.ask("submit", transfer, table, pages + np.uint32(50), pages)
    assert pair.receiver.ask("await_units", slot, 50) == 50
    assert pair.sender.ask("finish", transfer).plans_finished == 2


def test_transfers_that_run_at_once_fill_their_own_slots(pair: Pair) -> None:
    nbytes, pages = 3000, np.random.default_rng(3).permutation(200).astype(np.uint32)
    slots = [pair.slot() for _ in range(20)]
    tables = [
        copies(bytes=nbytes, src_stride=nbytes, dst_stride=nbytes, dst_offset=index * 200 * nbytes)
        for index in range(20)
    ]
    sent = [
        pair.sender.ask("send", pair.peer, slot, table, pages, pages[::-1].copy())
        for slot, table in zip(slots, tables, strict=True)
    ]
    for slot in slots:
        assert pair.receiver.ask("await_units", slot, 200) == 200
    got = pair.receiver.ask("read", 0, 20 * 200 * nbytes)
    want = pair.expected(tables[0], pages, pages[::-1])[: 200 * nbytes]
    for index in range(20):
        assert np.array_equal(got[index * 200 * nbytes : (index + 1) * 200 * nbytes], want)
    assert {pair.sender.ask("finish", transfer).error for transfer in sent} == {0}


def test_thousands_of_short_transfers_all_arrive(pair: Pair) -> None:
    slots, table = [pair.slot() for _ in range(3)], copies(bytes=16, src_stride=16, dst_stride=16)
    page = np.zeros(1, np.uint32)
    for _ in range(1000):
        for slot in slots:
            pair.sender.ask("release", pair.sender.ask("send", pair.peer, slot, table, page, page))
    for slot in slots:
        assert pair.receiver.ask("await_units", slot, 1000) == 1000
    pair.deliver(table, page, page)  # the sender has counted all of them
