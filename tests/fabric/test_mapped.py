"""Peers on one host: pages are copied into the peer's mapped memory and counted in its own slots."""

import dataclasses
import mmap
import multiprocessing as mp
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from node import copies

from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.fabric.mapped import SharedMemory, SharedRegion, attach
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.fabric.transfer import CopyTable, PageList, Transfer

PAGES, PAGE, LAYERS = 64, 4096, 3
NBYTES = LAYERS * PAGES * PAGE
SRC, DST = np.array([5, 6, 7, 40, 9], np.uint32), np.array([1, 2, 3, 60, 0], np.uint32)
ENDLESS = 4_000_000  # pages of each layer: many seconds of copying


def open_engine(**options: Any) -> Engine:
    return Engine(open_library(), PROFILES["tcp"], sources=["127.0.0.1"], slots=64, **options)


def _receive(pipe: Connection) -> None:
    engine = open_engine(share_slots=True)
    memory = SharedMemory.create(NBYTES)
    region = engine.register(memory.address, NBYTES, memory)
    pipe.send((engine.slot_share, memory.share, [nic.address for nic in engine.nics], region))
    actions = {
        "units": lambda: engine.slot_units(0),
        "units of slot 1": lambda: engine.slot_units(1),
        "generation": lambda: engine.slot_generation(0),
        "advance": lambda: engine.advance_slot(0),
        "bytes": lambda: memory.array().copy(),
    }
    while (action := pipe.recv()) != "end":
        pipe.send(actions[action]())
    engine.close()


class Receiver:
    """A process whose engine shares its slots, and whose memory can be mapped."""

    def __init__(self, process: mp.process.BaseProcess, pipe: Connection) -> None:
        self.process, self._pipe = process, pipe
        self._killed = False
        self.slots, self.memory, self.addresses, self.region = pipe.recv()

    def ask(self, what: str) -> Any:
        self._pipe.send(what)
        return self._pipe.recv()

    def kill(self) -> None:
        self._killed = True
        self.process.kill()
        self.process.join()

    def end(self) -> None:
        """In good order, unless a test has killed it."""
        if not self._killed:
            assert self.process.is_alive(), f"it has ended by itself: {self.process.exitcode}"
            self._pipe.send("end")
            self.process.join()
            assert self.process.exitcode == 0


@contextmanager
def receiver() -> Iterator[Receiver]:
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_receive, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        target = Receiver(process, ours)
        yield target
        target.end()
    finally:
        process.kill()
        process.join()


@pytest.fixture
def engine() -> Iterator[Engine]:
    opened = open_engine()
    yield opened
    opened.close()


class Writer:
    """Our side: memory full of random bytes, and a peer that is mapped."""

    def __init__(self, engine: Engine, target: Receiver) -> None:
        self.engine = engine
        self.source = np.random.default_rng(1).integers(1, 256, NBYTES, np.uint8)
        region = engine.register(self.source.ctypes.data, NBYTES, self.source)
        self.peer = engine.map_peer(target.slots, [SharedRegion(target.memory, 0, NBYTES)])
        self.table = copies(LAYERS, bytes=PAGE, src_stride=PAGE, dst_stride=PAGE)
        self.table["src_region"] = region.index
        self.table["src_offset"] = self.table["dst_offset"] = np.arange(LAYERS) * PAGES * PAGE

    def write(self, generation: int = 1) -> int:
        """Writes all layers and returns the transfer's error once it is quiet."""
        return self.write_pages(self.table, SRC, DST, generation)

    def write_pages(self, table: CopyTable, src: PageList, dst: PageList, generation: int = 1) -> int:
        transfer = self.engine.open_transfer(self.peer, 0, generation)
        transfer.submit(table, src, dst)
        while not (status := transfer.status()).quiet:
            pass
        transfer.release()
        return status.error

    @contextmanager
    def copying_for_long(self) -> Iterator[Transfer]:
        """A transfer of so many pages that it ends only because it is cancelled."""
        transfer = self.engine.open_transfer(self.peer, 0, 1)
        transfer.submit(self.table, np.resize(SRC, ENDLESS), np.resize(DST, ENDLESS))
        yield transfer
        transfer.cancel()
        while not transfer.status().quiet:
            pass
        transfer.release()


def test_pages_are_there_and_counted_when_the_writer_is_quiet(engine: Engine) -> None:
    with receiver() as target:
        writer = Writer(engine, target)
        assert writer.write() == 0
        assert target.ask("units") == LAYERS * len(SRC)
        got = target.ask("bytes").reshape(LAYERS, PAGES, PAGE)
        assert (got[:, DST] == writer.source.reshape(LAYERS, PAGES, PAGE)[:, SRC]).all()
        untouched = np.delete(got, DST, axis=1)
        assert not untouched.any()


def test_units_of_an_ended_generation_are_not_counted(engine: Engine) -> None:
    with receiver() as target:
        writer = Writer(engine, target)
        assert target.ask("advance") == 2
        assert writer.write(generation=1) == 0
        assert target.ask("units") == 0
        assert writer.write(generation=2) == 0
        assert target.ask("units") == LAYERS * len(SRC)


@pytest.mark.parametrize("start", [0, 16, 17])
def test_pieces_of_any_length_and_alignment_arrive_and_nothing_beside_them(
    engine: Engine, start: int
) -> None:
    with receiver() as target:
        writer = Writer(engine, target)
        row = writer.table[:1]
        row["src_offset"], row["dst_offset"] = 3, start
        want = np.zeros(NBYTES, np.uint8)
        for generation, nbytes in enumerate((1, 63, 64, 500, 1000, 1024, PAGE - 16, PAGE), 1):
            row["bytes"] = nbytes
            assert writer.write_pages(row, SRC, DST, generation) == 0
            assert target.ask("units") == len(SRC)
            for src, dst in zip(SRC.astype(int) * PAGE + 3, DST.astype(int) * PAGE + start, strict=True):
                want[dst : dst + nbytes] = writer.source[src : src + nbytes]
            assert (target.ask("bytes") == want).all()
            target.ask("advance")


def test_more_pages_than_an_immediate_can_say_are_all_counted(engine: Engine) -> None:
    with receiver() as target:
        writer = Writer(engine, target)
        tiny = copies(bytes=8, src_stride=8, dst_stride=8)
        pages = np.arange(NBYTES // 8, dtype=np.uint32)
        backwards = pages[::-1].copy()
        assert writer.write_pages(tiny, pages, pages) == 0
        assert target.ask("units") == len(pages)
        assert (target.ask("bytes") == writer.source).all()
        assert writer.write_pages(tiny, pages, backwards) == 0
        assert target.ask("units") == 2 * len(pages)
        assert (target.ask("bytes").view(np.uint64) == writer.source.view(np.uint64)[::-1]).all()


def test_a_long_copy_does_not_hold_up_another_one(engine: Engine) -> None:
    with receiver() as target:
        writer = Writer(engine, target)
        with writer.copying_for_long() as long:
            short = engine.open_transfer(writer.peer, 1, 1)
            short.submit(writer.table, SRC, DST)
            while not short.status().quiet:
                pass
            assert not long.status().quiet
        assert target.ask("units of slot 1") == LAYERS * len(SRC)


def test_a_long_copy_does_not_hold_up_the_nic(engine: Engine) -> None:
    with receiver() as target:
        writer = Writer(engine, target)
        over_tcp = engine.add_peer(target.addresses, [target.region])
        with writer.copying_for_long() as long:
            short = engine.open_transfer(over_tcp, 1, 1)
            short.submit(writer.table, SRC, DST)
            while not short.status().quiet:
                pass
            assert short.status().error == 0
            while target.ask("units of slot 1") < LAYERS * len(SRC):
                pass
            assert not long.status().quiet


def test_a_killed_owner_harms_neither_the_writer_nor_its_successor(engine: Engine) -> None:
    with receiver() as target:
        writer = Writer(engine, target)
        target.kill()
        assert writer.write() == 0  # into memory that nobody reads any more
        with pytest.raises(FabricError, match="cannot be mapped"):
            engine.map_peer(target.slots, [])
        writer.peer.remove()
    with receiver() as target:
        assert Writer(engine, target).write() == 0
        assert target.ask("units") == LAYERS * len(SRC)


def test_a_removed_peer_is_not_written_to(engine: Engine) -> None:
    with receiver() as target:
        writer = Writer(engine, target)
        transfer = engine.open_transfer(writer.peer, 0, 1)
        writer.peer.remove()
        transfer.submit(writer.table, SRC, DST)
        while not transfer.status().quiet:
            pass
        assert transfer.status().error
        assert target.ask("units") == 0


def test_a_page_outside_of_the_mapped_region_is_refused(engine: Engine) -> None:
    with receiver() as target:
        writer = Writer(engine, target)
        transfer = engine.open_transfer(writer.peer, 0, 1)
        with pytest.raises(FabricError, match="outside the peer's region"):
            transfer.submit(writer.table, SRC, DST + PAGES)
        with pytest.raises(FabricError, match="outside its memory"):
            engine.map_peer(target.slots, [SharedRegion(target.memory, 1, NBYTES)])
        assert target.ask("units") == 0


def test_shared_memory_is_there_before_it_is_touched_on_both_sides() -> None:
    nbytes = 64 << 20

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    memory = SharedMemory.create(nbytes)
    other = attach(memory.share)
    before = faults()
    memory.array()[:: mmap.PAGESIZE] = 1
    assert int(other.array()[:: mmap.PAGESIZE].sum()) == nbytes // mmap.PAGESIZE
    assert faults() - before < nbytes // mmap.PAGESIZE // 4
    other.close()


def test_memory_that_is_not_what_was_announced_is_not_mapped() -> None:
    memory = SharedMemory.create(4096)
    real = memory.share
    for wrong in (
        dataclasses.replace(real, inode=real.inode + 1),
        dataclasses.replace(real, nbytes=real.nbytes * 2),
        dataclasses.replace(real, pid=1 << 22),
        dataclasses.replace(real, host="elsewhere"),
    ):
        with pytest.raises(FabricError):
            attach(wrong)
    attached = attach(real)
    memory.array()[7] = 77
    assert attached.array()[7] == 77
    attached.close()
