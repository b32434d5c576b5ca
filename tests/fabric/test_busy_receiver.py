"""The I/O thread works without Python: while the GIL is held, and at next to no cost while idle."""

import time

import numpy as np
import pytest
from conftest import Pair, World
from node import Node, copies

from sglang_pd_fabric.fabric.transfer import CopyTable

NBYTES = 1 << 20
PAGES = np.arange(0, 64, dtype=np.uint32)[::-1].copy()
IDLE_SECONDS = 1.0


def table_of(layers: int) -> CopyTable:
    return copies(layers, bytes=NBYTES, src_stride=NBYTES, dst_stride=NBYTES)


@pytest.mark.parametrize("layers", [1, 16])
def test_data_flows_both_ways_while_both_processes_hold_the_gil(world: World, layers: int) -> None:
    """64 MiB, and 1 GiB, each way at the same time: more than any window, queue or socket buffer holds."""
    table, units = table_of(layers), layers * len(PAGES)
    with world.node() as one, world.node() as other:
        pair = Pair.join(one, other)
        back = other.ask("add_peer", one.ask("invite"))
        one.ask("allocate", 64 << 20), other.ask("allocate", 64 << 20)
        there = one.ask("send", pair.peer, 1, table, PAGES, PAGES)
        here = other.ask("send", back, 2, table, PAGES, PAGES)
        other.ask("hold_gil")
        # All that comes back was posted by the other's I/O thread, and what it counts is seen at once
        # when its Python runs again.
        assert one.ask("await_units", 2, units) == units
        assert one.ask("finish", there).error == 0
        one.ask("hold_gil")
        assert other.ask("await_units", 1, units) == units
        assert other.ask("finish", here).error == 0


def test_an_idle_io_thread_costs_little(world: World, record_property: object) -> None:
    """CPU time that the kernel has counted: whatever else runs here can make it only smaller."""
    assert callable(record_property)
    with world.node() as sender, world.node() as receiver:
        pair = Pair.join(sender, receiver)
        pair.deliver(table_of(1), PAGES[:4], PAGES[:4])  # a connection is there, as in life
        nodes = {"sender": sender, "receiver": receiver}
        seen = [idle_shares(nodes) for _ in range(3)]
        for name in nodes:
            share = min(shares[name] for shares in seen)
            record_property(f"idle_cpu_percent_{name}", round(share, 2))
            print(f"{world.provider} {name}: {share:.2f} % of a core while idle")
            assert share < 5


def idle_shares(nodes: dict[str, Node]) -> dict[str, float]:
    """Per cent of a core that the I/O threads take; a virtual machine may count more than they ran."""
    before, start = {name: node.io_cpu_ns() for name, node in nodes.items()}, time.monotonic_ns()
    time.sleep(IDLE_SECONDS)
    passed = time.monotonic_ns() - start
    return {name: 100 * (node.io_cpu_ns() - before[name]) / passed for name, node in nodes.items()}
