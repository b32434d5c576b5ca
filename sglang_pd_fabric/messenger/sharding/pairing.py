"""Which ranks meet, and what each prefill rank writes for one room of a decode rank that it has met."""

from typing import NamedTuple

from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.sharding.draw import Draw


class Duty(NamedTuple):
    """What one prefill rank writes for one room of one decode rank. All False: it only concludes."""

    target: bool  # its slice of the model's own layers
    draft: bool  # its slice of the draft's layers
    aux: bool  # the metadata row


def sources(prefill_tp: int, decode_tp: int, decode_rank: int) -> range:
    """The prefill ranks (of each stage) that a decode rank meets, of attention TP groups of these sizes.

    One of the sizes divides the other.
    """
    if prefill_tp >= decode_tp:
        ratio = prefill_tp // decode_tp
        return range(decode_rank * ratio, (decode_rank + 1) * ratio)
    source = decode_rank // (decode_tp // prefill_tp)
    return range(source, source + 1)


def pulls_per_writer(prefill_tp: int, decode_tp: int) -> int:
    """Decode ranks that pull a room from each prefill rank."""
    return max(1, decode_tp // prefill_tp)


def meets(prefill: LayoutRecord, decode: LayoutRecord) -> bool:
    """Whether the two ranks are a pair."""
    stages_meet = decode.pp_size == 1 or decode.pp_rank == prefill.pp_rank
    return stages_meet and prefill.tp_rank in _sources(prefill, decode)


def ends_model(prefill: LayoutRecord, decode: LayoutRecord) -> bool:
    """Whether this stage is the last one that the decode rank meets: draft and metadata row are its."""
    return decode.pp_size > 1 or prefill.pp_rank == prefill.pp_size - 1


def duty(prefill: LayoutRecord, decode: LayoutRecord, room: int, salt: int) -> Duty:
    """What the prefill rank writes for this room. The two are a pair.

    The metadata row is written by whoever was elected for the first of the heads, on the last stage.
    """
    draw = Draw.of(room, salt, prefill.pp_rank)
    elected = _elected(prefill, decode, prefill.kv_heads, draw)
    last = ends_model(prefill, decode)
    alike = _ranks_alike(prefill, prefill.kv_heads)
    first = prefill.tp_rank // alike == _sources(prefill, decode).start // alike
    return Duty(
        target=elected,
        draft=last and prefill.draft_buffers > 0 and _elected(prefill, decode, prefill.draft_kv_heads, draw),
        aux=last and elected and first,
    )


def _sources(prefill: LayoutRecord, decode: LayoutRecord) -> range:
    return sources(prefill.tp_size, decode.tp_size, decode.tp_rank)


def _ranks_alike(prefill: LayoutRecord, kv_heads: int) -> int:
    """How many neighbours hold the same heads."""
    return max(1, prefill.tp_size // kv_heads)


def _elected(prefill: LayoutRecord, decode: LayoutRecord, kv_heads: int, draw: Draw) -> bool:
    """Whether the rank was drawn among those that hold the same heads and meet the same decode rank."""
    alike = _ranks_alike(prefill, kv_heads)
    met = _sources(prefill, decode)
    first = prefill.tp_rank // alike * alike
    start, stop = max(first, met.start), min(first + alike, met.stop)
    return start + draw.rank(stop - start) == prefill.tp_rank
