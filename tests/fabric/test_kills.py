"""Processes that are killed at random points of a transfer, on either side: the survivor goes on as if new.

The survivor runs with glibc's checking allocator and a fault handler. Four peers at a time die, each at a
point of its own, so that their deadlines run together.
"""

import os
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import REGION, Pair, World
from node import Node, copies, until

from sglang_pd_fabric.fabric.transfer import CopyTable

MIB = 1 << 20
PAGES = np.random.default_rng(1).permutation(REGION // MIB).astype(np.uint32)
CHECKED = {
    "MALLOC_CHECK_": "3",
    "MALLOC_PERTURB_": "165",
    "LD_PRELOAD": "libc_malloc_debug.so.0",  # without it glibc 2.34 and newer ignore the other two
}
AT_A_TIME = 4
# How many are killed, and how often each transfer moves the region of 64 MiB.
KILLS = pytest.mark.parametrize(
    ("kills", "layers"), [(12, 1), pytest.param(100, 4, marks=pytest.mark.nightly)]
)


def table_of(layers: int, region: int = 0) -> CopyTable:
    return copies(layers, bytes=MIB, src_stride=MIB, dst_stride=MIB, dst_region=region)


def footprint(node: Node) -> Counter[str]:
    """What a process holds: descriptors by kind, threads, mappings of endpoints."""
    proc = Path(f"/proc/{node.pid}")
    held = Counter({"threads": len(list((proc / "task").iterdir()))})
    for entry in (proc / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            held[os.readlink(entry).split(":")[0].split(".")[0]] += 1
    held["endpoints mapped"] = (proc / "maps").read_text().count("/dev/shm/pd_fabric.")
    return held


def settled(node: Node) -> Counter[str]:
    """The same, when nothing is being closed or opened anew."""
    seen = footprint(node)
    while True:
        time.sleep(0.2)
        before, seen = seen, footprint(node)
        if seen == before:
            return seen


def resident(node: Node) -> int:
    """Bytes of memory that a process has for itself, endpoints in /dev/shm left out."""
    status = Path(f"/proc/{node.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


def left_behind(killed: list[int]) -> list[Path]:
    return [path for pid in killed for path in Path("/dev/shm").glob(f"pd_fabric.*.{pid}.*")]


def is_as_before(survivor: Node, before: Counter[str], memory: int) -> None:
    until(lambda: footprint(survivor) <= before, f"{before} again: {footprint(survivor)}")
    assert resident(survivor) - memory < 8 * MIB


@KILLS
def test_targets_killed_at_random_points(world: World, kills: int, layers: int) -> None:
    total, table = layers * REGION, table_of(layers)
    random = np.random.default_rng(kills)
    killed: list[int] = []
    with world.node(environ=CHECKED, stall=1.0) as sender:
        sender.ask("allocate", REGION, 1)
        before, memory = Counter[str](), 0
        for done in range(0, kills + AT_A_TIME, AT_A_TIME):  # the first ones only show what is usual
            targets = [world.node() for _ in range(AT_A_TIME)]
            peers, transfers = [], []
            for target in targets:
                target.ask("allocate", REGION)
                peers.append(sender.ask("add_peer", target.ask("invite")))
            for peer in peers:
                transfers.append(sender.ask("send", peer, 1, table, PAGES, PAGES))
            points = sorted(
                zip(random.uniform(0, total, AT_A_TIME), transfers, targets, strict=True), key=lambda p: p[0]
            )
            for point, transfer, target in points:
                sender.ask("await_bytes", transfer, int(point))
                target.kill()
                killed.append(target.pid)
            # More for them fails too, in the same time; nothing is tried for ever.
            late = [sender.ask("send", peer, 2, table, PAGES, PAGES) for peer in peers]
            ended = [sender.ask("end", transfer) for transfer in transfers + late]
            assert all(status.error or status.bytes_done == total for status in ended)
            assert all(status.error for status in ended[AT_A_TIME:])
            for peer in peers:
                sender.ask("remove_peer", peer)
            for transfer, status in zip(transfers + late, ended, strict=True):
                assert sender.ask("finish", transfer).error == status.error, "it ended twice"
                sender.ask("release", transfer)
            stats = sender.ask("stats")
            assert stats.writes_posted == stats.writes_completed + stats.writes_failed
            if done == 0:
                before, memory = settled(sender), resident(sender)
        is_as_before(sender, before, memory)
        with world.node() as fresh:
            assert left_behind(killed) == []
            pair = Pair(sender, fresh, 0)
            fresh.ask("allocate", REGION)
            pair.peer = sender.ask("add_peer", fresh.ask("invite"))
            assert np.array_equal(pair.deliver(table, PAGES, PAGES), pair.expected(table, PAGES, PAGES))


@KILLS
def test_senders_killed_at_random_points(world: World, kills: int, layers: int) -> None:
    units, table = layers * len(PAGES), table_of(layers)
    random = np.random.default_rng(kills)
    killed: list[int] = []
    with world.node(environ=CHECKED) as target:
        for _ in range(AT_A_TIME):
            target.ask("allocate", REGION)
        invitation = target.ask("invite")
        generation = 1
        before, memory = Counter[str](), 0
        for done in range(0, kills + AT_A_TIME, AT_A_TIME):
            senders = [world.node() for _ in range(AT_A_TIME)]
            for number, sender in enumerate(senders):
                sender.ask("allocate", REGION, 1)
                peer = sender.ask("add_peer", invitation)
                own = table_of(layers, region=number)
                sender.ask("send", peer, number, own, PAGES, PAGES, generation)
            for point, number in sorted(
                (int(point), number) for number, point in enumerate(random.uniform(0, units, AT_A_TIME))
            ):
                target.ask("await_units", number, point)
                senders[number].kill()
                killed.append(senders[number].pid)
            for number in range(AT_A_TIME):
                assert target.ask("units", number) <= units
                assert target.ask("advance", number) == generation % 127 + 1
            generation = generation % 127 + 1
            if done == 0:
                before, memory = settled(target), resident(target)
        if world.provider == "shm":
            before["endpoints mapped"] += kills  # libfabric 2.5 keeps those of the dead until it is closed
        is_as_before(target, before, memory)
        assert target.ask("stats").immediates_unknown == 0
        with world.node() as fresh:
            assert left_behind(killed) == []
            fresh.ask("allocate", REGION, 1)
            pair = Pair(fresh, target, fresh.ask("add_peer", invitation))
            pair.slots = iter([0])
            target.ask("clear", 0, REGION)
            transfer = fresh.ask("send", pair.peer, 0, table, PAGES, PAGES, generation)
            assert target.ask("await_units", 0, units) == units
            assert fresh.ask("finish", transfer).error == 0
            assert np.array_equal(target.ask("read", 0, REGION), pair.source)
