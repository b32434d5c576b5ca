"""Several NICs on either side (tcp endpoints on several loopback addresses), and very small windows."""

import numpy as np
import pytest
from conftest import Pair, World
from node import copies

TABLE = copies(4, bytes=9001, src_stride=9001, dst_stride=9001)
TABLE["src_offset"] = TABLE["dst_offset"] = np.arange(4) * 4_000_000


def deliver_shuffled(pair: Pair, count: int = 200) -> None:
    random = np.random.default_rng(count)
    src, dst = random.permutation(count), random.permutation(count)
    assert np.array_equal(pair.deliver(TABLE, src, dst), pair.expected(TABLE, src, dst))


@pytest.mark.parametrize(("ours", "theirs"), [(2, 2), (4, 4), (1, 3), (4, 1), (2, 3), (8, 2)])
def test_any_number_of_nics_writes_to_any_other(world: World, ours: int, theirs: int) -> None:
    with world.node(ours) as sender, world.node(theirs) as receiver:
        pair = Pair.join(sender, receiver)
        deliver_shuffled(pair)
        deliver_shuffled(pair, 17)


@pytest.mark.parametrize("window", [1, 2, 7])
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
