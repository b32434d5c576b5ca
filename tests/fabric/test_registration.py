"""Registering memory: keys are unique, many regions, the same buffer twice, again after it was closed."""

import numpy as np
import pytest
from conftest import Pair, World, nightly
from node import Invitation, copies

from sglang_pd_fabric.fabric.engine import Region
from sglang_pd_fabric.fabric.errors import FabricError

PIECE = 4096


def keys(regions: list[Region]) -> list[int]:
    return [key for region in regions for key in region.keys]


@pytest.mark.parametrize(
    ("count", "nics"), [(1, 1), (2, 3), (500, 3), nightly(1, 3), nightly(2, 1), nightly(500, 1)]
)
def test_every_region_has_its_own_key_and_takes_pages(world: World, count: int, nics: int) -> None:
    with world.node(nics) as sender, world.node(nics) as receiver:
        nbytes = count * PIECE
        source = sender.ask("allocate_pieces", nbytes, count, 3)
        receiver.ask("allocate_pieces", nbytes, count, None)
        invitation: Invitation = receiver.ask("invite")
        assert len(invitation.regions) == count
        for nic in range(nics):
            assert len({region.keys[nic] for region in invitation.regions}) == count
        peer = sender.ask("add_peer", invitation)
        table = copies(count, bytes=PIECE)
        table["src_region"] = np.arange(count)
        table["dst_region"] = np.arange(count)[::-1]
        page = np.zeros(1, np.uint32)
        transfer = sender.ask("send", peer, 1, table, page, page)
        seen, got = receiver.ask("read_when_full", 1, count, 0, nbytes)
        assert seen == count
        assert sender.ask("finish", transfer).error == 0
        assert np.array_equal(got.reshape(count, PIECE)[::-1], source.reshape(count, PIECE))


def test_one_buffer_may_be_registered_twice(world: World) -> None:
    with world.node() as sender, world.node() as receiver:
        pair = Pair.join(sender, receiver)
        receiver.ask("register_again", 0)
        invitation: Invitation = receiver.ask("invite")
        first, second = invitation.regions
        assert set(first.keys).isdisjoint(second.keys)
        pair.peer = sender.ask("add_peer", invitation)
        for region in (0, 1):
            table = copies(bytes=PIECE, dst_region=region, dst_offset=region * PIECE)
            assert np.array_equal(pair.deliver(table, [0], [0]), pair.expected(table, [0], [0]))


def test_what_was_closed_can_be_registered_again_with_other_keys(world: World) -> None:
    with world.node(2) as sender, world.node(2) as receiver:
        sender.ask("allocate", 1 << 20, 1)
        receiver.ask("allocate", 1 << 20)
        for node in (sender, receiver):
            node.ask("register_again", 0)
        before: list[Region] = receiver.ask("invite").regions
        for node in (sender, receiver):
            node.ask("unregister", 0)
            assert node.ask("invite").regions == []
            node.ask("register_again", 0)
        after: list[Region] = receiver.ask("invite").regions
        assert [region.index for region in after] == [0]
        assert set(keys(before)).isdisjoint(keys(after))
        pair = Pair(sender, receiver, sender.ask("add_peer", receiver.ask("invite")))
        table = copies(bytes=PIECE, src_stride=PIECE, dst_stride=PIECE)
        pages = np.arange(100)
        assert np.array_equal(
            pair.deliver(table, pages, pages)[: 100 * PIECE], sender.ask("read", 0, 100 * PIECE)
        )


def test_a_region_that_was_closed_is_no_source_any_more(world: World) -> None:
    with world.node() as sender, world.node() as receiver:
        pair = Pair.join(sender, receiver)
        sender.ask("register_again", 0)
        sender.ask("unregister", 1)
        page = np.zeros(1, np.uint32)
        with pytest.raises(FabricError, match="region 1"):
            sender.ask("send", pair.peer, 1, copies(bytes=64, src_region=1), page, page)
        table = copies(bytes=64)
        assert np.array_equal(pair.deliver(table, [0], [0]), pair.expected(table, [0], [0]))
        with pytest.raises(FabricError, match="region 5: there are 1"):
            sender.ask("unregister_index", 5)
