"""All ranks of both sides: every byte arrives once, where it belongs, and the units are those expected."""

from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded import Model, Request, Server, apply, clear_target, fill_source, must_hold, ranks

from sglang_pd_fabric.messenger.compatibility import refusal
from sglang_pd_fabric.messenger.sharding import (
    duty,
    expected_units,
    meets,
    pair_tables,
    pulls_per_writer,
    split_heads_notice,
    writer_units,
)
from sglang_pd_fabric.messenger.sharding.copies import row_counts

POOL_PAGES = 12


def spreadable(kv_heads: int, sizes: range = range(1, 17)) -> list[int]:
    """TP sizes on which SGLang runs so many heads."""
    return [tp for tp in sizes if kv_heads % tp == 0 or tp % kv_heads == 0]


@st.composite
def models(draw: Any) -> Model:
    attention = draw(st.sampled_from(["gqa", "gqa", "mla"]))
    width = st.integers(1, 3)
    tensors = 1 if attention == "mla" else 2
    return Model(
        attention=attention,
        kv_heads=1 if attention == "mla" else draw(st.integers(1, 16)),
        widths=tuple(draw(width) for _ in range(tensors)),
        layers=draw(st.integers(1, 5)),
        draft_layers=draw(st.integers(0, 2)),
        draft_widths=tuple(draw(width) for _ in range(tensors)),
        draft_everywhere=draw(st.booleans()),
        order=draw(st.sampled_from(["nhd", "hnd"])),
        page_size=draw(st.sampled_from([1, 2, 3, 16, 64])),
    )


@st.composite
def cases(draw: Any) -> tuple[Model, Server, Server, Request]:
    """A model, both servers and a request. The draft may have another number of heads than the model."""
    model = draw(models())
    prefill_tp = draw(st.sampled_from(spreadable(model.kv_heads)))
    fitting = [d for d in spreadable(model.kv_heads) if d % prefill_tp == 0 or prefill_tp % d == 0]
    decode_tp = draw(st.sampled_from(fitting))
    drafts = [h for h in range(1, 17) if {prefill_tp, decode_tp} <= set(spreadable(h))]
    model = Model(**vars(model) | {"draft_kv_heads": draw(st.sampled_from(drafts))})
    cuts = draw(st.sets(st.integers(1, max(1, model.layers - 1)), max_size=min(3, model.layers - 1)))
    bounds = [0, *sorted(cuts), model.layers]
    stages = tuple(end - first for first, end in pairwise(bounds))
    decode_stages = draw(st.sampled_from([(model.layers,), stages]))
    count = draw(st.integers(0, 4))
    pages = st.permutations(range(POOL_PAGES)).map(lambda order: tuple(order[:count]))
    request = Request(
        room=draw(st.integers(0, 2**63 - 1)),
        salt=draw(st.integers(0, 2**64 - 1)),
        prefix=draw(st.integers(0, 3)),
        src_pages=draw(pages),
        dst_pages=draw(pages),
    )
    return model, Server(prefill_tp, stages), Server(decode_tp, decode_stages), request


def check(model: Model, prefill: Server, decode: Server, request: Request) -> list[tuple[int, int, int]]:
    """Runs the request through all ranks. Returns who wrote: stage, prefill rank, decode rank."""
    sources, targets = list(ranks(model, prefill)), list(ranks(model, decode))
    for source in sources:
        fill_source(model, source, request, POOL_PAGES)
        pulls = sum(meets(source.layout, target.layout) for target in targets)
        assert pulls == pulls_per_writer(prefill.tp, decode.tp)
    writers = []
    for target in targets:
        clear_target(target, POOL_PAGES)
        met = [source for source in sources if meets(source.layout, target.layout)]
        counted = 0
        for source in met:
            pair = (source.layout, target.layout)
            assert refusal(*pair) is None
            kv, aux = len(source.buffers), len(source.memory)
            tables = pair_tables(*pair, range(kv), range(kv, aux), len(target.buffers))
            drafted = len(tables.pages) - tables.target_rows
            assert row_counts(*pair) == (tables.target_rows, drafted, len(tables.aux))
            does = duty(*pair, request.room, request.salt)
            units = apply(source, target, tables.kv(does), request.src_pages, request.dst_pages)
            units += apply(source, target, tables.row(does), (request.aux_src,), (request.aux_dst,))
            assert units == writer_units(*pair, request.room, request.salt, len(request.src_pages))
            counted += units
            if any(does):
                writers.append((source.layout.pp_rank, source.layout.tp_rank, target.layout.tp_rank))
        records = [source.layout for source in met]
        assert counted == expected_units(
            records, target.layout, request.room, request.salt, len(request.src_pages)
        )
        wanted = must_hold(model, target, request, POOL_PAGES)
        rows = [request.dst_pages] * len(target.buffers) + [(request.aux_dst,)] * len(target.layout.aux_bytes)
        for memory, writes, right, written in zip(target.memory, target.writes, wanted, rows, strict=True):
            assert (memory == right).all()
            once = np.zeros_like(writes)
            once[list(written)] = 1
            assert (writes == once).all()
    return writers


@settings(max_examples=150, deadline=None)
@given(cases())
def test_every_byte_of_every_decode_rank_is_written_once_and_right(
    case: tuple[Model, Server, Server, Request],
) -> None:
    check(*case)


ONE = Request(room=7, salt=9, prefix=1, src_pages=(3, 4, 9), dst_pages=(8, 1, 2))
GQA = Model(kv_heads=4, page_size=16)
MLA = Model(attention="mla", kv_heads=1, widths=(3,), draft_widths=(3,), draft_layers=1)


@pytest.mark.parametrize("order", ["nhd", "hnd"])
@pytest.mark.parametrize("decode_tp", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("prefill_tp", [1, 2, 4, 8, 16])
def test_gqa_with_every_power_of_two(prefill_tp: int, decode_tp: int, order: str) -> None:
    model = Model(**vars(GQA) | {"order": order})
    writers = check(model, Server(prefill_tp, (2,)), Server(decode_tp, (2,)), ONE)
    # One writer for each decode rank and each slice of its heads.
    slices = max(1, min(prefill_tp, GQA.kv_heads) // min(decode_tp, GQA.kv_heads))
    assert len(writers) == decode_tp * slices


def test_mla_with_equal_sizes_goes_from_each_rank_to_its_twin() -> None:
    assert check(MLA, Server(4, (2,)), Server(4, (2,)), ONE) == [(0, rank, rank) for rank in range(4)]


def test_mla_to_fewer_ranks_has_one_writer_for_each_room_and_all_of_them_over_many() -> None:
    """DP attention on decode: each rank is a TP group of its own, with its own rooms and its own salt."""
    drawn: set[tuple[int, ...]] = set()
    for salt in (101, 102, 103, 104):
        writers = []
        for room in range(40):
            request = Request(room, salt, 0, ONE.src_pages, ONE.dst_pages)
            ((stage, rank, _),) = check(MLA, Server(8, (2,)), Server(1, (2,)), request)
            assert stage == 0
            writers.append(rank)
        assert set(writers) == set(range(8))
        drawn.add(tuple(writers))
    assert len(drawn) == 4


def test_mla_to_more_ranks_keeps_every_source_at_work() -> None:
    writers = check(MLA, Server(2, (2,)), Server(8, (2,)), ONE)
    assert writers == [(0, rank // 4, rank) for rank in range(8)]


def test_stages_draw_their_writers_independently() -> None:
    pairs = set()
    for room in range(60):
        request = Request(room, 5, 0, ONE.src_pages, ONE.dst_pages)
        (_, first, _), (_, second, _) = check(MLA, Server(2, (1, 1)), Server(1, (2,)), request)
        pairs.add((first, second))
    assert pairs == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_request_that_decode_has_entirely_is_the_metadata_row_alone() -> None:
    nothing = Request(1, 2, 4, (), ())
    for model in (GQA, MLA):
        assert len(check(model, Server(4, (1, 1)), Server(2, (2,)), nothing)) > 0
    (prefill, *_), (decode, *_) = ranks(GQA, Server(1, (2,))), ranks(GQA, Server(1, (2,)))
    assert expected_units([prefill.layout], decode.layout, 1, 2, 0) == len(prefill.layout.aux_bytes)


def test_each_layer_ends_where_its_rows_end() -> None:
    model = Model(layers=4, kv_heads=4, page_size=2)
    (_, source), (target,) = (list(ranks(model, s)) for s in (Server(1, (1, 3)), Server(1, (4,))))
    tables = pair_tables(source.layout, target.layout, range(6), range(6, 9), 8)
    first = 0
    for layer, end in enumerate(tables.layer_ends):
        regions = tables.pages["dst_region"][first:end]
        assert {target.buffers[region].layer for region in regions} == {layer + 1}
        assert {target.buffers[region].tensor for region in regions} == {0, 1}
        first = end
    assert first == tables.target_rows == len(tables.pages)


def test_the_notice_counts_the_writes_that_split_heads_cost() -> None:
    for order, prefill_tp, decode_tp, words in (
        ("nhd", 2, 1, "64 pieces a page instead of 4, one for each of 16 tokens"),
        ("nhd", 1, 4, "64 pieces a page instead of 4, one for each of 16 tokens"),
        ("nhd", 2, 2, None),
        ("nhd", 8, 4, None),  # one head on each side: whole pages
        ("hnd", 2, 1, None),
    ):
        model = Model(**vars(GQA) | {"order": order})
        (source, *_), (target, *_) = (ranks(model, Server(tp, (2,))) for tp in (prefill_tp, decode_tp))
        notice = split_heads_notice(source.layout, target.layout)
        assert (notice is None) == (words is None)
        if words is not None and notice is not None:
            assert words in notice
            assert "SGLANG_USE_HND_KVCACHE" in notice


def test_buffers_of_no_bytes_are_left_out() -> None:
    (rank,) = ranks(Model(layers=2), Server(1, (2,)))
    first, *rest = rank.layout.page_bytes
    layout = msgspec.structs.replace(rank.layout, page_bytes=(first, 0, *rest[1:]))
    tables = pair_tables(layout, layout, range(4), range(4, 7), 4)
    assert list(tables.pages["src_region"]) == [0, 2, 3]
    assert list(tables.layer_ends) == [2, 3]
    assert row_counts(layout, layout).target == 3
