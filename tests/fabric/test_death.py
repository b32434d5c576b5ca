"""Peers that are killed, frozen, removed or closed at any moment cost their own transfers only."""

import errno
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import Pair, World, nightly
from node import Node, copies, until

NBYTES = 256 << 10
TABLE = copies(bytes=NBYTES, src_stride=NBYTES, dst_stride=NBYTES)
PAGES = np.arange(0, 256, dtype=np.uint32)[::-1].copy()
TOTAL = NBYTES * len(PAGES)


def in_flight(sender: Node) -> int:
    stats = sender.ask("stats")
    return int(stats.writes_posted - stats.writes_completed - stats.writes_failed)


def serves(sender: Node, world: World) -> None:
    """The sender is healthy: a new process gets everything."""
    with world.node() as fresh:
        fresh.ask("allocate", 64 << 20)
        peer = sender.ask("add_peer", fresh.ask("invite"))
        transfer = sender.ask("send", peer, 7, TABLE, PAGES, PAGES)
        assert fresh.ask("await_units", 7, len(PAGES)) == len(PAGES)
        assert sender.ask("finish", transfer).error == 0
        sender.ask("remove_peer", peer)


def test_a_killed_target_ends_its_transfers_and_the_next_target_works(world: World) -> None:
    with world.impatient() as sender:
        sender.ask("allocate", 64 << 20, 1)
        for share in (None, 0, 0.4, 0.99):
            target = world.node()
            target.ask("allocate", 64 << 20)
            peer = sender.ask("add_peer", target.ask("invite"))
            if share is None:
                target.kill()
            transfers = [sender.ask("send", peer, slot, TABLE, PAGES, PAGES) for slot in (1, 2)]
            sender.ask("await_bytes", transfers[0], int(TOTAL * (share or 0)))
            target.kill()
            ended = [sender.ask("end", transfer) for transfer in transfers]
            assert all(status.error or status.bytes_done == TOTAL for status in ended)
            sender.ask("remove_peer", peer)
            for transfer in transfers:
                sender.ask("finish", transfer)
                sender.ask("release", transfer)
        serves(sender, world)
        stats = sender.ask("stats")
        # Every posted write ended once, whichever way.
        assert stats.writes_posted == stats.writes_completed + stats.writes_failed


def test_many_killed_targets_do_not_use_up_the_senders_queues(world: World) -> None:
    with world.impatient() as sender:
        sender.ask("allocate", 64 << 20, 1)
        small = copies(bytes=4096, src_stride=4096, dst_stride=8192)
        pages = np.arange(4000, dtype=np.uint32)
        for _ in range(6):
            target = world.node()
            target.ask("allocate", 64 << 20)
            peer = sender.ask("add_peer", target.ask("invite"))
            target.freeze()
            transfer = sender.ask("send", peer, 1, small, pages, pages)
            target.kill()
            sender.ask("end", transfer)
            sender.ask("remove_peer", peer)
            sender.ask("finish", transfer)
        serves(sender, world)


def test_a_target_frozen_for_a_moment_gets_everything(world: World) -> None:
    with world.node() as sender, world.node() as target:
        pair = Pair.join(sender, target)
        transfer = sender.ask("send", pair.peer, 1, TABLE, PAGES, PAGES)
        sender.ask("await_bytes", transfer, TOTAL // 4)
        target.freeze()
        sender.ask("stats")
        target.thaw()
        assert target.ask("await_units", 1, len(PAGES)) == len(PAGES)
        assert sender.ask("finish", transfer).error == 0


def test_a_frozen_target_fails_its_transfers_and_holds_up_no_other(world: World) -> None:
    windows = {"window": 64, "peer_window": 64}  # the frozen one alone may not fill it, whatever it says
    with (
        world.node(profile=windows, stall=1.0) as sender,
        world.node() as frozen,
        world.node() as healthy,
    ):
        pair = Pair.join(sender, frozen)
        healthy.ask("allocate", 64 << 20)
        other = sender.ask("add_peer", healthy.ask("invite"))
        pair.deliver(TABLE, PAGES[:1], PAGES[:1])  # so that a connection is there
        frozen.freeze()
        small = copies(40, bytes=2000, src_stride=2000, dst_stride=4000)
        many = np.arange(1000, dtype=np.uint32)
        stuck = sender.ask("send", pair.peer, 99, small, many, many)
        until(lambda: in_flight(sender) >= 32, "the frozen one takes all that it may")
        sent = sender.ask("send", other, 1, TABLE, PAGES, PAGES)
        assert healthy.ask("await_units", 1, len(PAGES)) == len(PAGES)
        assert sender.ask("finish", sent).error == 0
        assert not sender.ask("status", stuck).quiet, "the frozen target took everything: no test"
        assert sender.ask("end", stuck).error != 0
        sender.ask("remove_peer", pair.peer)
        sender.ask("finish", stuck)
        frozen.kill()
        serves(sender, world)


def test_a_sender_that_stood_still_for_too_long_posts_nothing_old(world: World) -> None:
    """Its trace says what was posted when. One write may be on its way into the provider when it stops."""
    with world.node(stall=0.1, trace=1 << 16) as sender, world.node() as target:
        pair = Pair.join(sender, target)
        layers = copies(40, bytes=NBYTES, src_stride=NBYTES, dst_stride=NBYTES)
        transfer = sender.ask("send", pair.peer, 1, layers, PAGES, PAGES)
        sender.ask("await_bytes", transfer, TOTAL)
        sender.freeze()
        time.sleep(1.5)  # the standstill itself: more than the deadline and a second
        thawed = time.monotonic_ns()
        sender.thaw()
        status = sender.ask("finish", transfer)
        assert status.error == -errno.ETIMEDOUT
        assert status.bytes_done < 40 * TOTAL
        events = sender.ask("take_trace")
        assert sender.ask("stats").trace_lost == 0
        assert sum(event.kind == "post" and event.ns > thawed for event in events) <= 1
        target.kill()  # half a write may stand in its socket: closing on top of that is another test


@pytest.mark.parametrize("spare", [True, False])
def test_what_is_queued_for_a_removed_peer_never_leaves(world: World, spare: bool) -> None:
    """As soon as the transfer is quiet its pages are another request's, and the target's may be too.

    Nor when the process may open no file descriptor; its NIC is busy then, and is not opened anew.
    """
    if world.provider != "tcp":
        pytest.skip("tcp only: what shm has not copied when a write is posted, it does not copy later")
    with world.node() as sender, world.node() as target, world.node() as other:
        sender.ask("allocate", TOTAL, 1)
        target.ask("allocate", TOTAL, 2)
        other.ask("allocate", TOTAL)
        peer = sender.ask("add_peer", target.ask("invite"))
        busy = sender.ask("add_peer", other.ask("invite"))
        for known in (peer, busy):
            first = sender.ask("send", known, 1, TABLE, PAGES[:1], PAGES[:1])
            assert sender.ask("finish", first).error == 0  # so that a connection is there
        if not spare:
            other.freeze()
            sender.ask("send", busy, 2, TABLE, PAGES, PAGES)
            until(lambda: in_flight(sender) >= 32, "the NIC is busy")
        target.freeze()
        before = in_flight(sender)
        lost = sender.ask("send", peer, 2, TABLE, PAGES, PAGES)
        until(lambda: in_flight(sender) >= before + 32, "the frozen one takes all that it may")
        sender.ask("spare_descriptors", spare)
        sender.ask("remove_peer", peer)
        status = sender.ask("finish", lost)
        assert status.error
        assert status.bytes_done < TOTAL // 2, "the frozen target took everything: no test"
        sender.ask("clear", 0, TOTAL)
        sender.ask("spare_descriptors", True)
        target.thaw()
        other.kill()
        peer = sender.ask("add_peer", target.ask("invite"))
        marker = sender.ask("send", peer, 3, TABLE, PAGES[:1], PAGES[:1])
        assert target.ask("await_units", 3, 1) == 1
        assert sender.ask("finish", marker).error == 0
        pages = target.ask("read", 0, TOTAL).reshape(len(PAGES), NBYTES)
        assert np.flatnonzero(~pages.any(axis=1)).tolist() == [PAGES[0]], "the new owner's bytes were sent"


def test_a_sender_that_may_open_no_descriptor_for_a_while_goes_on_after_it(world: World) -> None:
    """What it may not open meanwhile is the new endpoint for the one with writes to the dead."""
    with world.impatient() as sender, world.node() as other:
        other.ask("allocate", 64 << 20)
        target = world.node()
        pair = Pair.join(sender, target)
        pair.deliver(TABLE, PAGES[:1], PAGES[:1])  # so that a connection is there
        living = sender.ask("add_peer", other.ask("invite"))
        target.freeze()
        lost = sender.ask("send", pair.peer, 2, TABLE, PAGES, PAGES)
        until(lambda: in_flight(sender) >= 32, "the frozen one takes all that it may")
        sender.ask("spare_descriptors", False)
        target.kill()
        sender.ask("remove_peer", pair.peer)
        assert sender.ask("finish", lost).error
        sender.ask("await_sleeps", 20)
        sender.ask("remove_peer", living)
        sender.ask("spare_descriptors", True)
        serves(sender, world)


@pytest.mark.parametrize("share", [0, 0.6, nightly(0.1)])
def test_a_removed_peer_fails_its_transfers_only(world: World, share: float) -> None:
    with world.node() as sender, world.node() as one, world.node() as other:
        pair = Pair.join(sender, one)
        other.ask("allocate", 64 << 20)
        peer = sender.ask("add_peer", other.ask("invite"))
        lost = sender.ask("send", pair.peer, 1, TABLE, PAGES, PAGES)
        kept = sender.ask("send", peer, 1, TABLE, PAGES, PAGES)
        sender.ask("await_bytes", lost, int(TOTAL * share))
        sender.ask("remove_peer", pair.peer)
        status = sender.ask("finish", lost)
        assert status.error or status.bytes_done == TOTAL
        assert other.ask("await_units", 1, len(PAGES)) == len(PAGES)
        assert sender.ask("finish", kept).error == 0
        one.kill()  # half a write may stand in its socket: closing on top of that is another test


def test_a_cancelled_transfer_writes_nothing_after_it_is_quiet(world: World) -> None:
    with world.node() as sender, world.node() as target:
        pair = Pair.join(sender, target)
        transfer = sender.ask("send", pair.peer, 1, TABLE, PAGES, PAGES)
        sender.ask("await_bytes", transfer, TOTAL // 8)
        sender.ask("cancel", transfer)
        quiet = sender.ask("finish", transfer)
        assert quiet.error == 0
        marker = sender.ask("send", pair.peer, 2, TABLE, PAGES[:1], PAGES[:1])
        assert target.ask("await_units", 2, 1) == 1  # all that was before it on the wire has come
        assert target.ask("units", 1) == quiet.units_done
        assert sender.ask("finish", marker).error == 0


def test_what_is_quiet_has_arrived_however_small_it_is(world: World) -> None:
    """Few bytes may lie in a socket, or in shared memory, until their target looks."""
    table, pages = copies(bytes=16, src_stride=16, dst_stride=16), PAGES[:100]
    with world.node() as sender, world.node() as target:
        pair = Pair.join(sender, target)
        pair.deliver(table, pages, pages)
        target.freeze()
        first, second = (sender.ask("send", pair.peer, slot, table, pages, pages) for slot in (2, 3))
        sender.ask("await_bytes", second, 16 * 80)  # by now all that ends early has ended
        assert not sender.ask("status", first).quiet
        target.thaw()
        for transfer, slot in ((first, 2), (second, 3)):
            assert sender.ask("finish", transfer).error == 0
            assert target.ask("await_units", slot, len(pages)) == len(pages)


@pytest.mark.parametrize("ends", ["sender", "receiver"])
def test_an_engine_may_close_while_bytes_flow(closing_world: World, ends: str) -> None:
    with closing_world.impatient() as survivor:
        gone = closing_world.impatient()
        sender, target = (gone, survivor) if ends == "sender" else (survivor, gone)
        with gone:
            pair = Pair.join(sender, target)
            transfer = sender.ask("send", pair.peer, 1, TABLE, PAGES, PAGES)
            sender.ask("await_bytes", transfer, TOTAL // 8)
        if ends == "receiver":
            status = sender.ask("end", transfer)
            assert status.error or status.bytes_done == TOTAL
            sender.ask("remove_peer", pair.peer)
            sender.ask("finish", transfer)
        else:
            survivor.ask("allocate", 64 << 20, 1)
        serves(survivor, closing_world)


def test_what_a_killed_process_left_in_dev_shm_goes_at_the_next_start(world: World) -> None:
    if world.provider != "shm":
        pytest.skip("shm only")
    killed = world.node(2)
    left = list(Path("/dev/shm").glob(f"pd_fabric.*.{killed.pid}.*"))
    assert len(left) == 2
    with world.node() as living:
        killed.kill()
        with world.node():
            assert not any(path.exists() for path in left)
            assert list(Path("/dev/shm").glob(f"pd_fabric.*.{living.pid}.*"))
    assert not list(Path("/dev/shm").glob(f"pd_fabric.*.{living.pid}.*"))
