"""Where the I/O thread runs: on its own CPUs from before it opens a NIC, nobody else with it, and soon."""

import os
import re
from pathlib import Path

import pytest
from conftest import Pair, World, nightly
from node import copies

from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.topology.cpulist import format_cpulist

ALLOWED = sorted(os.sched_getaffinity(0))
TABLE = copies(4, bytes=9001, src_stride=9001, dst_stride=9001)


@pytest.mark.parametrize("cpus", [ALLOWED[-1:], ALLOWED[:2], nightly(ALLOWED[:1])])
def test_the_io_thread_alone_runs_on_its_cpus_and_pages_arrive(world: World, cpus: list[int]) -> None:
    nics = 4 if world.provider == "tcp" else 1
    with world.node(nics, cpus=cpus) as sender, world.node(nics, cpus=cpus) as receiver:
        pair = Pair.join(sender, receiver)
        pages = list(range(50))
        assert (pair.deliver(TABLE, pages, pages) == pair.expected(TABLE, pages, pages)).all()
        threads = sender.cpus()
        assert threads.pop(int(sender.io_thread().name)) == format_cpulist(cpus)
        assert threads[sender.pid] == format_cpulist(ALLOWED)


def test_without_cpus_it_runs_wherever_the_process_may(world: World) -> None:
    with world.node() as node:
        assert node.cpus()[int(node.io_thread().name)] == format_cpulist(ALLOWED)


@pytest.mark.parametrize("foreign", [ALLOWED[-1] + 1, 2**32 - 1, nightly(8191), nightly(8192)])
def test_a_cpu_that_is_not_ours_is_refused_with_the_list(world: World, foreign: int) -> None:
    with pytest.raises(FabricError, match=f"cannot run on CPUs {ALLOWED[0]},{foreign}: this process may not"):
        world.node(cpus=[ALLOWED[0], foreign])


def slice_ns(task: Path) -> int | None:
    """The thread's slice, where the kernel shows it (from 6.12 on a thread can ask for one)."""
    shown = task / "sched"
    found = re.search(r"se\.slice\s*:\s*(\d+)", shown.read_text()) if shown.exists() else None
    return int(found.group(1)) if found else None


def test_the_io_thread_alone_asks_for_a_short_slice(world: World) -> None:
    with world.node() as node:
        own = slice_ns(node.io_thread())
        others = slice_ns(Path(f"/proc/{node.pid}/task/{node.pid}"))
        if own is None or others is None:
            pytest.skip("this kernel does not show a thread's slice")
        assert own == 100_000 < others
