"""shm: containers with a /dev/shm of their own or a small one; what an endpoint takes."""

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import Pair, World
from node import copies

from sglang_pd_fabric.fabric.errors import FabricError

TABLE = copies(bytes=1 << 20, src_stride=1 << 20, dst_stride=1 << 20)
PAGES = np.arange(64, dtype=np.uint32)[::-1].copy()
MIB = 1 << 20
CPUS = os.cpu_count() or 1  # libfabric wants the more of /dev/shm the more there are
AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root may mount a /dev/shm of its own")


@pytest.fixture
def shm(world: World) -> World:
    if world.provider != "shm":
        pytest.skip("shm only")
    return world


@AS_ROOT
def test_a_peer_with_another_dev_shm_is_refused_at_once_and_the_remedy_is_named(shm: World) -> None:
    with shm.node() as sender, shm.node(own_shm=(CPUS + 4) * 32 * MIB) as apart, shm.node() as near:
        apart.ask("allocate", 64 * MIB)
        with pytest.raises(FabricError, match=r"does not exist for us: .* container; .*--ipc=host"):
            sender.ask("add_peer", apart.ask("invite"))
        pair = Pair.join(sender, near)
        assert np.array_equal(pair.deliver(TABLE, PAGES, PAGES), pair.expected(TABLE, PAGES, PAGES))


@AS_ROOT
def test_a_dev_shm_that_is_too_small_ends_the_start(shm: World) -> None:
    with pytest.raises(FabricError, match="provider shm"):
        shm.node(own_shm=8 * MIB)
    # All that an endpoint can need was taken at its start: several do not fit where one does.
    room = CPUS * 16 * MIB + 8 * MIB
    with shm.node(own_shm=room):
        pass
    if CPUS < 6:  # one takes 12.8 MiB with libfabric 2.5: where it wants so much room, eight of them fit
        with pytest.raises(FabricError, match=r"no room for an endpoint .*--shm-size|provider shm"):
            shm.node(8, own_shm=room)


def test_all_of_an_endpoint_is_reserved(shm: World) -> None:
    with shm.node(2) as node:
        files = list(Path("/dev/shm").glob(f"pd_fabric.*.{node.pid}.*"))
        assert len(files) == 2
        for file in files:
            assert file.stat().st_blocks * 512 >= file.stat().st_size
