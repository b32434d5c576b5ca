"""Checksums of both sides of every pair of layouts: equal when every byte arrived, and of the right bytes."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded import Model, Rank, Request, Server, apply, clear_target, fill_source, ranks

from sglang_pd_fabric.fabric.engine import Region
from sglang_pd_fabric.fabric.memory import HostMemory
from sglang_pd_fabric.messenger.integrity import Verifier, Witness, gather_host
from sglang_pd_fabric.messenger.messages import Digest, Endpoint, Pull
from sglang_pd_fabric.messenger.rooms import ROW, Handed, Room
from sglang_pd_fabric.messenger.sharding import duty, meets, pair_tables

from .test_bytes import POOL_PAGES, cases

SLOT, GENERATION = 3, 5


def regions(rank: Rank) -> list[Region]:
    """As an engine gives them where it addresses by offset."""
    return [
        Region(index, 0, array.nbytes, (1,), memory=HostMemory(array.ctypes.data, array.nbytes))
        for index, array in enumerate(rank.memory)
    ]


def handed(request: Request) -> list[Handed]:
    """Two chunks of pages, and the row."""
    pages, half = np.array(request.src_pages, np.int32), len(request.src_pages) // 2
    chunks = [(pages[:half], 0), (pages[half:], half), (np.array([request.aux_src]), ROW)]
    return [Handed(part, first, 0) for part, first in chunks]


def write_and_tell(source: Rank, target: Rank, writer: Endpoint, request: Request) -> Digest | None:
    """Writes the rank's part into decode's memory and says what it was."""
    pair = (source.layout, target.layout)
    kv, aux = len(source.buffers), len(source.memory)
    tables = pair_tables(*pair, range(kv), range(kv, aux), len(target.buffers))
    does = duty(*pair, request.room, request.salt)
    apply(source, target, tables.kv(does), request.src_pages, request.dst_pages)
    apply(source, target, tables.row(does), (request.aux_src,), (request.aux_dst,))
    room = Room(request.room, handed=handed(request))
    pull = Pull(request.salt, request.room, SLOT, GENERATION, b"", request.aux_dst, 0, 1)
    return Witness(source.layout, regions(source), gather_host).digest(
        room, pull, writer, target.layout, tables
    )


def verifier(target: Rank, met: dict[Endpoint, Rank], said: list[Digest], request: Request) -> Verifier:
    judge = Verifier(target.layout, regions(target), request.salt, gather_host)
    judge.begin(request.room, np.array(request.dst_pages, np.int32), request.aux_dst)
    judge.expect(request.room, {writer: source.layout for writer, source in met.items()})
    for digest in said:
        judge.take(digest)
    return judge


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_checksums_are_equal_and_any_other_byte_is_named_with_a_writer(
    case: tuple[Model, Server, Server, Request], data: Any
) -> None:
    model, prefill, decode, request = case
    sources, targets = list(ranks(model, prefill)), list(ranks(model, decode))
    for source in sources:
        fill_source(model, source, request, POOL_PAGES)
    target = data.draw(st.sampled_from(targets))
    clear_target(target, POOL_PAGES)
    met = {
        Endpoint(f"stage{source.layout.pp_rank}", source.layout.tp_rank + 1): source
        for source in sources
        if meets(source.layout, target.layout)
    }
    answers = [write_and_tell(source, target, writer, request) for writer, source in met.items()]
    said = [digest for digest in answers if digest is not None]
    assert verifier(target, met, said, request).verdict(request.room) == ""
    for missing in range(len(said)):
        others = said[:missing] + said[missing + 1 :]
        assert verifier(target, met, others, request).verdict(request.room) is None
    region = data.draw(st.integers(0, len(target.memory) - 1))
    place = data.draw(st.integers(0, target.memory[region].nbytes - 1))
    target.memory[region].reshape(-1)[place] ^= 0x80
    verdict = verifier(target, met, said, request).verdict(request.room)
    if target.writes[region].reshape(-1)[place]:
        assert verdict
        assert any(str(digest.prefill) in verdict for digest in said)
    else:
        assert verdict == ""
