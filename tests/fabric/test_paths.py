"""NICs that are taken out in mid-transfer, on either side: nothing is lost and nothing counts twice.

A transfer that the loss costs says that it may be repeated. That is done as the messenger does it: as a whole
and with a new generation of its slot.
"""

import dataclasses
import errno
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import REGION, Pair, World, nightly
from node import Node, copies, until
from tcp_relay import TcpRelay

PAGE, LAYERS = 20_000, 8
PAGES = np.random.default_rng(8).permutation(400).astype(np.uint32)
TABLE = copies(LAYERS, bytes=PAGE, src_stride=PAGE, dst_stride=PAGE)
TABLE["src_offset"] = TABLE["dst_offset"] = np.arange(LAYERS) * 400 * PAGE
FEW, SMALL = PAGES[:100], copies(bytes=64, src_stride=64, dst_stride=64)
UNITS, TOTAL = LAYERS * len(PAGES), LAYERS * len(PAGES) * PAGE


def send_while(pair: Pair, loses: Node, nic: int, share: float) -> bool:
    """Sends all pages while a NIC is taken out, and again if that is needed. Whether it was.

    The sender learns of it from its transfer. A receiver that takes out a NIC of its own knows it.
    """
    slot, generation = pair.slot(), 1
    pair.receiver.ask("clear", 0, TOTAL)
    transfer = pair.sender.ask("send", pair.peer, slot, TABLE, PAGES, PAGES, generation)
    pair.sender.ask("await_bytes", transfer, int(TOTAL * share))
    loses.ask("remove_nic", nic)
    missing = loses is pair.receiver and pair.receiver.ask("units", slot) < UNITS
    status = pair.sender.ask("end", transfer)
    repeated = missing or status.error != 0
    if repeated:
        assert status.retry or not status.error, status
        generation = pair.receiver.ask("advance", slot)
        pair.sender.ask("finish", transfer)
        transfer = pair.sender.ask("send", pair.peer, slot, TABLE, PAGES, PAGES, generation)
    assert pair.receiver.ask("await_units", slot, UNITS) == UNITS
    status = pair.sender.ask("finish", transfer)
    assert (status.error, status.units_done) == (0, UNITS)
    got = pair.receiver.ask("read", 0, TOTAL)
    assert np.array_equal(got, pair.source[:TOTAL])
    assert pair.receiver.ask("units", slot) == UNITS, "a write was counted twice"
    return repeated


@pytest.mark.parametrize("share", [0, 0.5, nightly(0.2), nightly(0.9)])
def test_a_nic_of_the_sender_is_taken_out(world: World, share: float) -> None:
    with world.node(3) as sender, world.node(3) as receiver:
        pair = Pair.join(sender, receiver)
        send_while(pair, sender, 1, share)
        send_while(pair, sender, 0, share)
        pair.deliver(TABLE, PAGES[:9], PAGES[:9])


@pytest.mark.parametrize(
    ("ours", "theirs", "share"),
    [
        (2, 2, 0.2),
        (3, 2, 0.9),
        (2, 3, 0),
        *(nightly(*nics, share) for nics in [(2, 2), (3, 2), (2, 3)] for share in [0, 0.2, 0.5, 0.9]),
    ],
)
def test_a_nic_of_the_receiver_is_taken_out(
    closing_world: World, ours: int, theirs: int, share: float
) -> None:
    if closing_world.provider == "shm":
        pytest.skip("shm reports no error when a target's endpoint closes: only the stall deadline sees it")
    with closing_world.node(ours) as sender, closing_world.node(theirs) as receiver:
        pair = Pair.join(sender, receiver)
        send_while(pair, receiver, 0, share)
        # The way to the NIC that is gone was lost at the latest with this; from here on none is tried.
        if send_while(pair, sender, 0, 1):
            assert sender.ask("stats").paths_lost
        pair.deliver(TABLE, PAGES[:9], PAGES[:9])


@contextmanager
def behind_relay(world: World, nics: int, **sending: float) -> Iterator[tuple[Pair, TcpRelay]]:
    """A pair whose connections are there; a relay stands before the receiver's first NIC."""
    with world.node(nics, **sending) as sender, world.node(nics) as receiver:
        sender.ask("allocate", REGION, 1)
        receiver.ask("allocate", REGION)
        invitation = receiver.ask("invite")
        with TcpRelay(invitation.addresses[0]) as relay:
            around = [relay.address, *invitation.addresses[1:]]
            peer = sender.ask("add_peer", dataclasses.replace(invitation, addresses=around))
            pair = Pair(sender, receiver, peer)
            pair.deliver(SMALL, FEW, FEW)
            yield pair, relay


@pytest.mark.parametrize("nics", [1, 2])
def test_a_connection_that_breaks_when_all_writes_have_ended_spoils_the_transfer(
    world: World, nics: int
) -> None:
    """The bytes lie in sockets: for the sender nearly all of its writes have ended, and none has arrived."""
    if world.provider != "tcp":
        pytest.skip("tcp only")
    with behind_relay(world, nics) as (pair, relay):
        sender, receiver = pair.sender, pair.receiver
        relay.keep()
        slot = pair.slot()
        transfer = sender.ask("send", pair.peer, slot, SMALL, FEW, FEW)
        sender.ask("await_bytes", transfer, 64 * 80)
        assert not sender.ask("status", transfer).quiet, "it is done, and nothing has arrived"
        relay.reset()
        status = sender.ask("end", transfer)
        assert status.error
        assert status.retry == (nics > 1)
        assert sender.ask("finish", transfer).units_done <= 100
        assert receiver.ask("units", slot) < 100
        again = sender.ask("send", pair.peer, slot, SMALL, FEW, FEW, receiver.ask("advance", slot))
        error = sender.ask("end", again).error
        if world.is_old and error:  # 1.17 does not always connect anew, and says so
            assert error in (-errno.ENOTCONN, -errno.ETIMEDOUT)
            return
        assert receiver.ask("await_units", slot, 100) == 100
        assert sender.ask("finish", again).error == 0


def test_a_path_that_takes_nothing_is_lost_while_the_other_works(world: World) -> None:
    """No connection breaks. The other path takes what comes all the time; what was on this one is quiet."""
    if world.provider != "tcp":
        pytest.skip("tcp only")
    with behind_relay(world, 2, stall=2.0) as (pair, relay):
        sender, traffic = pair.sender, pair.slot()
        relay.keep()
        stuck = sender.ask("send", pair.peer, pair.slot(), SMALL, FEW, FEW)
        while not (status := sender.ask("status", stuck)).error:
            before = sender.ask("stats").nic_bytes[1]
            sender.ask("send", pair.peer, traffic, SMALL, FEW, FEW)
            until(lambda had=before: works(sender, stuck, had), "the other path works")
        assert (status.error, status.retry) == (-errno.ETIMEDOUT, True)
        assert sender.ask("finish", stuck).units_done <= 100
        pair.deliver(SMALL, FEW, FEW)


def works(sender: Node, stuck: int, before: int) -> bool:
    """Whether NIC 1 has moved bytes since, or nobody waits for that any more."""
    return sender.ask("stats").nic_bytes[1] > before or sender.ask("status", stuck).error != 0


def test_without_any_nic_transfers_fail_at_once_with_the_reason(world: World) -> None:
    with world.node(2, stall=600.0) as sender, world.node(2) as receiver:
        pair = Pair.join(sender, receiver)
        pair.deliver(TABLE, PAGES[:9], PAGES[:9])
        receiver.freeze()
        stuck = sender.ask("send", pair.peer, pair.slot(), TABLE, PAGES, PAGES)
        sender.ask("remove_nic", 0)
        sender.ask("remove_nic", 1)
        status = sender.ask("end", stuck)
        assert (status.error, sender.ask("finish", stuck).quiet) == (-errno.ENETDOWN, True)
        later = sender.ask("send", pair.peer, pair.slot(), TABLE, PAGES, PAGES)
        status = sender.ask("end", later)
        assert (status.error, status.retry) == (-errno.ENETDOWN, False)
        receiver.thaw()


def test_a_nic_that_does_not_exist_cannot_be_taken_out(world: World) -> None:
    with world.node(2) as sender, pytest.raises(Exception, match="NIC 2: there are 2"):
        sender.ask("remove_nic", 2)
