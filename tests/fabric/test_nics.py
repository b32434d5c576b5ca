"""Several NICs on either side (tcp endpoints on several loopback addresses), and very small windows."""

import itertools

import numpy as np
import pytest
from conftest import Pair, World, nightly
from node import copies

TABLE = copies(4, bytes=9001, src_stride=9001, dst_stride=9001)
TABLE["src_offset"] = TABLE["dst_offset"] = np.arange(4) * 4_000_000


def deliver_shuffled(pair: Pair, count: int = 200) -> None:
    random = np.random.default_rng(count)
    src, dst = random.permutation(count), random.permutation(count)
    assert np.array_equal(pair.deliver(TABLE, src, dst), pair.expected(TABLE, src, dst))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(1, 4), (2, 3), (4, 1), (8, 2), *(nightly(*both) for both in [(1, 3), (2, 2), (3, 1), (4, 4)])],
)
def test_any_number_of_nics_writes_to_any_other(world: World, ours: int, theirs: int) -> None:
    with world.node(ours) as sender, world.node(theirs) as receiver:
        pair = Pair.join(sender, receiver)
        deliver_shuffled(pair)
        deliver_shuffled(pair, 17)
        stats = sender.ask("stats")
        assert sum(stats.nic_bytes) == stats.bytes_completed
        assert [nbytes > 0 for nbytes in stats.nic_bytes] == [nic < ours for nic in range(8)]


FEW = [*range(1, 41), 63, 64, 65]


@pytest.mark.parametrize(
    ("ours", "theirs", "spin"), [(1, 1, 0.0), (3, 4, 3600.0), nightly(1, 1, 3600.0), nightly(3, 4, 0.0)]
)
def test_few_pages_are_complete_whether_the_io_thread_sleeps_at_once_or_never(
    world: World, ours: int, theirs: int, spin: float
) -> None:
    sizes = {1: FEW, 4096: FEW, 1 << 20: [1, 15, 16, 17, 32, 33], 8 << 20: [1, 2]}
    with world.node(ours, spin=spin) as sender, world.node(theirs, spin=spin) as receiver:
        pair = Pair.join(sender, receiver)
        for nbytes, counts in sizes.items():
            table = copies(bytes=nbytes, src_stride=nbytes, dst_stride=nbytes)
            for count in counts:
                pages = np.arange(count)
                got = pair.deliver(table, pages, pages[::-1])
                assert np.array_equal(got, pair.expected(table, pages, pages[::-1])), (nbytes, count)


@pytest.mark.parametrize("window", [1, 7, nightly(2)])
def test_a_tiny_window_only_slows_down(world: World, window: int) -> None:
    with (
        world.node(2, profile={"window": window, "peer_window": window}) as sender,
        world.node(2) as receiver,
    ):
        deliver_shuffled(Pair.join(sender, receiver), 90)


def test_one_write_per_page_loses_none_in_a_burst_of_ten_thousand(world: World) -> None:
    with world.node(profile={"segments": 1}) as sender, world.node() as receiver:
        pair = Pair.join(sender, receiver)
        table = copies(bytes=32, src_stride=32, dst_stride=64)
        pages = np.arange(10_000)
        assert np.array_equal(pair.deliver(table, pages, pages), pair.expected(table, pages, pages))
        assert sender.ask("stats").writes_posted == 10_000


def test_a_provider_with_room_for_8_writes_is_never_given_more(world: World) -> None:
    """Ten thousand writes; the trace has each of them with its post and its end."""
    layered = world.provider == "tcp" and world.is_old  # there it is rxm's queue that we post to
    variable = {"shm": "FI_SHM_TX_SIZE", "tcp": "FI_OFI_RXM_TX_SIZE" if layered else "FI_TCP_TX_SIZE"}
    environ = {variable[world.provider]: "8"}
    with (
        world.node(profile={"segments": 1}, environ=environ, trace=1 << 16) as sender,
        world.node() as receiver,
    ):
        pair = Pair.join(sender, receiver)
        table = copies(bytes=32, src_stride=32, dst_stride=64)
        pages = np.arange(10_000)
        assert np.array_equal(pair.deliver(table, pages, pages), pair.expected(table, pages, pages))
        events = [event.kind for event in sender.ask("take_trace")]
        assert sender.ask("stats").trace_lost == 0
        flying = list(itertools.accumulate({"post": 1, "done": -1}.get(kind, 0) for kind in events))
        assert events.count("post") == events.count("done") == 10_000
        assert 2 <= max(flying) <= 8
