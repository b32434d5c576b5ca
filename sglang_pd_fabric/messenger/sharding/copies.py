"""The copy tables of a pair: which bytes of a page go where.

A page of a buffer is ``[token, head, dim]`` (NHD) or ``[head, token, dim]`` (HND). The heads that two ranks
share are one run of bytes per page in HND. In NHD they are one run per token, unless the page goes over
whole. Each row of a table is one such run, for every page; each run of each page counts one unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_pd_fabric.fabric.transfer import COPY, CopyTable
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.sharding.heads import held_heads
from sglang_pd_fabric.messenger.sharding.pairing import Duty

_Row = tuple[int, int, int, int, int, int, int, int]


@dataclass(frozen=True)
class PairTables:
    """All that a prefill rank can write to a decode rank. A room's duty says which of it is written.

    Attributes:
        pages: copies of each page, rows of ``COPY``: the model's own layers in their order, each after the
            step that fills it, then the draft's, which are filled when the model has run.
        layer_ends: row after the last one of each of prefill's own layers, shape ``[layers]``.
        aux: copies of the metadata row, one for each buffer.
    """

    pages: CopyTable
    layer_ends: npt.NDArray[np.int64]
    aux: CopyTable

    @property
    def target_rows(self) -> int:
        """Rows of ``pages`` of the model's own layers; the rest is the draft's."""
        return int(self.layer_ends[-1])

    def kv(self, does: Duty) -> CopyTable:
        """The copies of each page, for a room with this duty."""
        first = 0 if does.target else self.target_rows
        end = len(self.pages) if does.draft else self.target_rows
        return self.pages[first:end]

    def row(self, does: Duty) -> CopyTable:
        """The copies of the metadata row."""
        return self.aux[: len(self.aux) * does.aux]


class RowCounts(NamedTuple):
    """Rows of the tables of a pair, which are the units of one page (for ``aux``: of the row)."""

    target: int
    draft: int
    aux: int


class _Buffers(NamedTuple):
    """A buffer of prefill and the one of decode that it belongs into."""

    src: int
    dst: int


def pair_tables(
    prefill: LayoutRecord,
    decode: LayoutRecord,
    kv_regions: Sequence[int],
    aux_regions: Sequence[int],
    first_aux_region: int,
) -> PairTables:
    """The tables of a pair.

    Args:
        kv_regions: the writing engine's region of each KV buffer, in the order of ``prefill.page_bytes``.
        aux_regions: its region of each metadata buffer.
        first_aux_region: decode's region of its first metadata buffer. Its KV buffers are its regions
            from 0 on, in the order of ``decode.page_bytes``.
    """
    pages: list[_Row] = []
    ends: list[int] = []
    for done, layer in enumerate(_target_layers(prefill, decode), start=1):
        for buffers in layer:
            pages += _rows(prefill, decode, prefill.kv_heads, buffers, kv_regions, done)
        ends.append(len(pages))
    for buffers in _draft(prefill, decode):
        pages += _rows(prefill, decode, prefill.draft_kv_heads, buffers, kv_regions, prefill.held_layers + 1)
    aux: list[_Row] = [
        (region, first_aux_region + index, 0, 0, nbytes, nbytes, nbytes, 0)
        for index, (region, nbytes) in enumerate(zip(aux_regions, prefill.aux_bytes, strict=True))
    ]
    return PairTables(np.array(pages, COPY), np.array(ends, np.int64), np.array(aux, COPY))


def row_counts(prefill: LayoutRecord, decode: LayoutRecord) -> RowCounts:
    """The lengths of the tables of a pair, without the tables. Decode needs no more."""
    target, draft = _buffer_counts(prefill)
    return RowCounts(
        target * _runs_per_page(prefill, decode, prefill.kv_heads),
        draft * _runs_per_page(prefill, decode, prefill.draft_kv_heads),
        len(prefill.aux_bytes),
    )


def split_heads_notice(prefill: LayoutRecord, decode: LayoutRecord) -> str | None:
    """What it costs that NHD pages must be taken apart token by token; None where they need not be."""
    counts, buffers = row_counts(prefill, decode), sum(_buffer_counts(prefill))
    pieces = counts.target + counts.draft
    if pieces == buffers:
        return None
    return (
        f"Attention TP {prefill.tp_size} on prefill and {decode.tp_size} on decode split the KV heads of NHD "
        f"pages: {pieces} pieces a page instead of {buffers}, one for each of {prefill.page_size} tokens in "
        "each buffer. SGLANG_USE_HND_KVCACHE=1 on both sides makes each slice of a page one piece."
    )


def _buffer_counts(prefill: LayoutRecord) -> tuple[int, int]:
    """Buffers of the model and of the draft, without those of no bytes."""
    own = len(prefill.page_bytes) - prefill.draft_buffers
    return sum(map(bool, prefill.page_bytes[:own])), sum(map(bool, prefill.page_bytes[own:]))


def _target_layers(prefill: LayoutRecord, decode: LayoutRecord) -> list[list[_Buffers]]:
    """The buffers of each of prefill's layers. All K come before all V on both sides."""
    here, there = prefill.held_layers, decode.held_layers
    shift = prefill.first_layer - decode.first_layer
    return [
        [_Buffers(t * here + layer, t * there + shift + layer) for t in range(prefill.tensors_per_layer)]
        for layer in range(here)
    ]


def _draft(prefill: LayoutRecord, decode: LayoutRecord) -> list[_Buffers]:
    """The draft's buffers, which follow the model's own on both sides."""
    here = len(prefill.page_bytes) - prefill.draft_buffers
    there = len(decode.page_bytes) - decode.draft_buffers
    return [_Buffers(here + index, there + index) for index in range(prefill.draft_buffers)]


def _runs_per_page(prefill: LayoutRecord, decode: LayoutRecord, kv_heads: int) -> int:
    """Runs of bytes in which the common heads of a page lie."""
    here = held_heads(kv_heads, prefill.tp_size, prefill.tp_rank)
    there = held_heads(kv_heads, decode.tp_size, decode.tp_rank)
    return 1 if prefill.order == "hnd" or here.size == there.size else prefill.page_size


def _rows(
    prefill: LayoutRecord,
    decode: LayoutRecord,
    kv_heads: int,
    buffers: _Buffers,
    regions: Sequence[int],
    after: int,
) -> list[_Row]:
    here = held_heads(kv_heads, prefill.tp_size, prefill.tp_rank)
    there = held_heads(kv_heads, decode.tp_size, decode.tp_rank)
    common = here.common(there)
    runs = _runs_per_page(prefill, decode, kv_heads)
    src_page, dst_page = prefill.page_bytes[buffers.src], decode.page_bytes[buffers.dst]
    if src_page == 0:
        return []
    # One head of a page in HND; in NHD one head of one of its runs.
    head_bytes = src_page // here.size // runs
    src_first = (common.first - here.first) * head_bytes
    dst_first = (common.first - there.first) * head_bytes
    return [
        (
            regions[buffers.src],
            buffers.dst,
            run * (src_page // runs) + src_first,
            run * (dst_page // runs) + dst_first,
            src_page,
            dst_page,
            common.size * head_bytes,
            after,
        )
        for run in range(runs)
    ]
