"""All ranks of a prefill and a decode server in numpy, and a plain interpreter of copy tables.

Every element of the KV cache has a code of its own (kind, tensor, layer, token, head, element), so that a
byte that landed in the wrong place is seen. What a rank has to hold is worked out here anew, from the
definition of a tensor-parallel slice, not with the package's functions.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from sglang_pd_fabric.fabric.transfer import CopyTable
from sglang_pd_fabric.messenger.layout import PROTOCOL, LayoutRecord

ELEMENT = np.dtype("<u4")
AUX_BYTES = (64, 8, 128)
AUX_ROWS = 3


@dataclass(frozen=True)
class Model:
    """A model and how its pages lie.

    ``widths``: elements of one token of one head of each tensor. ``draft_everywhere``: every pipeline stage
    holds the draft's layers, not only the last one.
    """

    attention: str = "gqa"
    kv_heads: int = 4
    widths: tuple[int, ...] = (2, 1)
    layers: int = 2
    draft_layers: int = 0
    draft_kv_heads: int = 1
    draft_widths: tuple[int, ...] = (1, 2)
    draft_everywhere: bool = False
    order: str = "nhd"
    page_size: int = 4
    integrity: bool = False


@dataclass(frozen=True)
class Server:
    """Parallel sizes of a server: attention TP, and the layers of each pipeline stage."""

    tp: int
    stages: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """A room: which logical pages of the prompt go from where to where."""

    room: int
    salt: int
    prefix: int
    src_pages: tuple[int, ...]
    dst_pages: tuple[int, ...]
    aux_src: int = 2
    aux_dst: int = 1


@dataclass(frozen=True)
class Buffer:
    """One KV buffer of a rank."""

    kind: int  # 0 the model's own, 1 the draft's
    tensor: int
    layer: int  # numbered over all stages
    width: int
    heads: tuple[int, ...]


@dataclass
class Rank:
    """A rank with its memory: bytes of each buffer, and how often each byte was written."""

    layout: LayoutRecord
    buffers: list[Buffer]
    memory: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    writes: list[npt.NDArray[np.uint8]] = field(default_factory=list)


def heads_of(kv_heads: int, tp: int, rank: int) -> tuple[int, ...]:
    """Heads of a rank, from the definition: head h of H belongs where h/H meets rank/TP."""
    if tp > kv_heads:
        return (rank * kv_heads // tp,)
    return tuple(head for head in range(kv_heads) if head * tp // kv_heads == rank)


def ranks(model: Model, server: Server) -> Iterator[Rank]:
    """Every rank of the server, without memory."""
    bounds = list(accumulate(server.stages, initial=0))
    for stage, (first, end) in enumerate(pairwise(bounds)):
        for tp_rank in range(server.tp):
            own = heads_of(model.kv_heads, server.tp, tp_rank)
            drafted = heads_of(model.draft_kv_heads, server.tp, tp_rank)
            buffers = [
                Buffer(0, tensor, layer, width, own)
                for tensor, width in enumerate(model.widths)
                for layer in range(first, end)
            ]
            if end == model.layers or model.draft_everywhere:
                buffers += [
                    Buffer(1, tensor, layer, width, drafted)
                    for tensor, width in enumerate(model.draft_widths)
                    for layer in range(model.draft_layers)
                ]
            yield Rank(_record(model, server, stage, first, tp_rank, buffers), buffers)


def _record(
    model: Model, server: Server, stage: int, first: int, tp_rank: int, buffers: list[Buffer]
) -> LayoutRecord:
    return LayoutRecord(
        protocol=PROTOCOL,
        model="codes",
        attention=model.attention,
        page_size=model.page_size,
        dtype="float32",
        order=model.order,
        page_bytes=tuple(model.page_size * len(b.heads) * b.width * ELEMENT.itemsize for b in buffers),
        aux_bytes=AUX_BYTES,
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_dim=model.widths[0],
        tp_size=server.tp,
        tp_rank=tp_rank,
        pp_size=len(server.stages),
        pp_rank=stage,
        first_layer=first,
        draft_buffers=sum(b.kind for b in buffers),
        draft_kv_heads=model.draft_kv_heads if model.draft_layers else 1,
        provider="tcp",
        version="test",
        integrity=model.integrity,
    )


def page_codes(model: Model, buffer: Buffer, page: int) -> npt.NDArray[np.uint8]:
    """The bytes of a logical page of the prompt in this buffer."""
    heads, tokens = np.array(buffer.heads), page * model.page_size + np.arange(model.page_size)
    code = (buffer.kind * 2 + buffer.tensor) * 8 + buffer.layer
    nhd = ((code * 512 + tokens[:, None, None]) * 16 + heads[None, :, None]) * 8 + np.arange(buffer.width)
    ordered = nhd if model.order == "nhd" else nhd.transpose(1, 0, 2)
    return np.ascontiguousarray(ordered, ELEMENT).reshape(-1).view(np.uint8)


def fill_source(model: Model, rank: Rank, request: Request, pool_pages: int) -> None:
    """Prefill's memory: the request's pages in their places, other bytes that must not travel elsewhere."""
    for nbytes, buffer in zip(rank.layout.page_bytes, rank.buffers, strict=True):
        pool = np.full((pool_pages, nbytes), 0xEE, np.uint8)
        for index, page in enumerate(request.src_pages):
            pool[page] = page_codes(model, buffer, request.prefix + index)
        rank.memory.append(pool)
    for index, nbytes in enumerate(AUX_BYTES):
        rows = np.full((AUX_ROWS, nbytes), 0xEE, np.uint8)
        rows[request.aux_src] = 100 + index
        rank.memory.append(rows)


def clear_target(rank: Rank, pool_pages: int) -> None:
    """Decode's memory: nothing written yet."""
    sizes = [(pool_pages, nbytes) for nbytes in rank.layout.page_bytes]
    sizes += [(AUX_ROWS, nbytes) for nbytes in AUX_BYTES]
    rank.memory = [np.full(size, 0x55, np.uint8) for size in sizes]
    rank.writes = [np.zeros(size, np.uint8) for size in sizes]


def must_hold(model: Model, rank: Rank, request: Request, pool_pages: int) -> list[npt.NDArray[np.uint8]]:
    """What decode's memory has to be in the end."""
    wanted = Rank(rank.layout, rank.buffers)
    clear_target(wanted, pool_pages)
    for buffer, pool in zip(rank.buffers, wanted.memory, strict=False):
        for index, page in enumerate(request.dst_pages):
            pool[page] = page_codes(model, buffer, request.prefix + index)
    for index, rows in enumerate(wanted.memory[len(rank.buffers) :]):
        rows[request.aux_dst] = 100 + index
    return wanted.memory


def apply(
    source: Rank,
    target: Rank,
    copies: CopyTable,
    src_pages: tuple[int, ...],
    dst_pages: tuple[int, ...],
) -> int:
    """Does what the engine does with a plan: every copy for every pair of pages. Returns the units."""
    src, dst = np.array(src_pages, np.int64), np.array(dst_pages, np.int64)
    for row in copies:
        span = np.arange(int(row["bytes"]))
        here = (int(row["src_offset"]) + int(row["src_stride"]) * src)[:, None] + span
        there = (int(row["dst_offset"]) + int(row["dst_stride"]) * dst)[:, None] + span
        target.memory[row["dst_region"]].reshape(-1)[there] = source.memory[row["src_region"]].reshape(-1)[
            here
        ]
        target.writes[row["dst_region"]].reshape(-1)[there] += 1
    return len(copies) * len(src)
