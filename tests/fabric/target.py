"""The other process of the fabric tests: an engine that receives, driven over a pipe.

It does what a decode rank's engine does, with plain byte buffers: registers memory, hands out what a
writer needs, and answers questions about its counters and its bytes.
"""

import multiprocessing as mp
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sglang_pd_fabric.fabric.engine import Engine, Region
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.fabric.profiles import PROFILES


def open_engine(provider: str, nics: int = 1, **options: Any) -> Engine:
    profile = PROFILES[provider]
    source = "127.0.0.1" if profile.binds_host else None
    return Engine(open_library(), profile, sources=[source] * nics, **options)


def register(engine: Engine, buffer: np.ndarray) -> Region:
    return engine.register(buffer.ctypes.data, buffer.nbytes, buffer)


def _serve(pipe: Connection, provider: str, sizes: list[int], nics: int, options: dict[str, Any]) -> None:
    engine = open_engine(provider, nics, **options)
    buffers = [np.zeros(size, np.uint8) for size in sizes]
    regions = [register(engine, buffer) for buffer in buffers]
    pipe.send(([nic.address for nic in engine.nics], regions))
    actions = {
        "units": engine.slot_units,
        "generation": engine.slot_generation,
        "advance": engine.advance_slot,
        "stats": engine.stats,
        "bytes": lambda index: buffers[index].copy(),
    }
    while True:
        name, *arguments = pipe.recv()
        if name == "close":
            engine.close()
            pipe.send(None)
            return
        pipe.send(actions[name](*arguments))


class Target:
    """A handle on the process."""

    def __init__(self, process: mp.process.BaseProcess, pipe: Connection) -> None:
        self.process = process
        self._pipe = pipe
        self.addresses, self.regions = pipe.recv()

    def ask(self, name: str, *arguments: object) -> Any:
        self._pipe.send((name, *arguments))
        return self._pipe.recv()

    def wait_units(self, slot: int, units: int, rounds: int = 20_000) -> None:
        """Each question is a round trip through the pipe, so this waits without sleeping."""
        for _ in range(rounds):
            seen = self.ask("units", slot)
            if seen >= units:
                break
        assert seen == units


@contextmanager
def target(provider: str, sizes: list[int], nics: int = 1, **options: Any) -> Iterator[Target]:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, provider, sizes, nics, options), daemon=True)
    process.start()
    theirs.close()
    try:
        peer = Target(process, ours)
        yield peer
        if process.is_alive():
            peer.ask("close")
    finally:
        process.join(5)
        process.kill()
        process.join()
