"""Run by test_refusals.py in a process of its own: threads use an engine while it closes."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from node import Invitation, copies

from sglang_pd_fabric.fabric.engine import Engine, Peer
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.fabric.transfer import Transfer

NBYTES = 1 << 20
TABLE = copies(4, bytes=4096, src_stride=4096, dst_stride=4096)
PAGES = np.arange(100, dtype=np.uint32)


def use(engine: Engine, peer: Peer, shared: list[Transfer]) -> None:
    """Opens, submits, asks, cancels and releases, its own and those of others, until the engine is closed."""
    try:
        while True:
            transfer = engine.open_transfer(peer, 1, 1)
            transfer.submit(TABLE, PAGES, PAGES)
            shared.append(transfer)
            for other in shared[-8:]:
                other.status()
            shared[-3 % len(shared)].cancel()
            shared[-5 % len(shared)].release()
    except FabricError as error:
        if not any(word in str(error) for word in ("closed", "removed", "released")):
            raise


def main(library: str) -> None:
    for _ in range(15):
        ours, theirs = (
            Engine(open_library(library), PROFILES["tcp"], sources=["127.0.0.1"]) for _ in range(2)
        )
        buffers = [np.zeros(NBYTES, np.uint8) for _ in range(2)]
        ours.register(buffers[0].ctypes.data, NBYTES, buffers[0])
        regions = [theirs.register(buffers[1].ctypes.data, NBYTES, buffers[1])]
        invitation = Invitation([nic.address for nic in theirs.nics], regions)
        peer = ours.add_peer(invitation.addresses, invitation.regions)
        shared: list[Transfer] = []
        with ThreadPoolExecutor(3) as threads:
            users = [threads.submit(use, ours, peer, shared) for _ in range(3)]
            while theirs.slot_units(1) < 50 and not any(user.done() for user in users):
                pass
            ours.close()
        for user in users:
            user.result()
        peer.remove()
        ours.close()
        theirs.close()


if __name__ == "__main__":
    main(sys.argv[1])
