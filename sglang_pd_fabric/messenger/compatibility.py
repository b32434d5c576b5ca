"""Whether a prefill rank and a decode rank can exchange pages, and if not, what to change.

Parallel sizes may differ where ``sharding`` has a rule for it. What cannot be served is refused on both sides
with the field, both values and the flag. Names of equal things may differ, as of a checkpoint under two
paths: ``OVERRIDABLE`` fields may, when both sides allow it. ``docs/compatibility.md`` has all fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.sharding.heads import can_spread, held_heads
from sglang_pd_fabric.messenger.sharding.pairing import ends_model, meets

_SAME_CHECKPOINT = "serve the same checkpoint (--model-path) on both sides"
_SAME_DRAFT = "use the same --speculative-* options on both sides"

# What has to be equal, and what it is set by.
_EQUAL = {
    "protocol": "install the same sglang-pd-fabric on both sides",
    "sglang": "install the same sglang on both sides",
    "model": _SAME_CHECKPOINT,
    "weights": "serve the same checkpoint (--model-path, --revision) on both sides",
    "compute_dtype": "use the same --dtype on both sides",
    "draft_model": _SAME_DRAFT,
    "attention": _SAME_CHECKPOINT,
    "page_size": "use the same --page-size on both sides",
    "dtype": "use the same --dtype and --kv-cache-dtype on both sides",
    "order": "use the same KV layout (SGLANG_USE_HND_KVCACHE) on both sides",
    "aux_bytes": "use the same metadata options (--disaggregation-enable-kv-checksum, ...) on both sides",
    "layers": _SAME_CHECKPOINT,
    "kv_heads": _SAME_CHECKPOINT,
    "head_dim": _SAME_CHECKPOINT,
    "provider": "use the same SGLANG_PD_FABRIC_PROVIDER on both sides",
    "integrity": "use the same SGLANG_PD_FABRIC_INTEGRITY on both sides",
}
# What has to fit.
_FIT = {
    "tp_size": "choose attention TP sizes (--tp-size over --dp-size) of which one is a multiple of the other",
    "pp_size": "use --pp-size 1, or prefill's, on decode",
    "layer_range": "cut the layers into the same pipeline stages (SGLANG_PP_LAYER_PARTITION) on both sides",
    "draft_buffers": _SAME_DRAFT,
    "draft_kv_heads": _SAME_DRAFT,
    "page_bytes": "use the same --dtype and --kv-cache-dtype on both sides",
}
_REMEDY = _EQUAL | _FIT
# What names a thing and says nothing of how its bytes lie: equal things may have two names.
OVERRIDABLE = ("model", "weights", "draft_model", "compute_dtype", "sglang")
OVERRIDE = "SGLANG_PD_FABRIC_ALLOW_MISMATCH"


class Difference(NamedTuple):
    field: str
    prefill: object
    decode: object


@dataclass(frozen=True)
class Verdict:
    """What the two records come to, the same on both sides.

    Attributes:
        refusal: why the two cannot exchange pages, in words for both sides' operators; None when they can.
        waived: what differs and is served, because both sides allow it; in words, empty if nothing does.
    """

    refusal: str | None
    waived: str


def judge(prefill: LayoutRecord, decode: LayoutRecord) -> Verdict:
    """Whether the two can exchange pages."""
    waived = [item for item in _unequal(prefill, decode) if _allowed(item, prefill, decode)]
    return Verdict(refusal(prefill, decode), _waiver_text(waived) if waived else "")


def refusal(prefill: LayoutRecord, decode: LayoutRecord) -> str | None:
    """Why the two cannot exchange pages, in words for both sides' operators; None when they can."""
    found = differences(prefill, decode)
    if found:
        return refusal_text(found)
    for side, record in (("prefill", prefill), ("decode", decode)):
        flaw = _miscount(record) or _flaw(record)
        if flaw is not None:
            return f"the layout record of {side} contradicts itself: {flaw}"
    if not meets(prefill, decode):
        return (
            f"prefill rank {_rank(prefill)} has nothing for decode rank {_rank(decode)}: "
            "the two sides do not agree on who meets whom"
        )
    return None


def differences(prefill: LayoutRecord, decode: LayoutRecord) -> list[Difference]:
    """The fields in which the two sides differ and which stand in the way of a transfer.

    What must be equal comes first; what must fit is looked at only when that is equal, and only where the
    numbers of both records go together: a peer can say anything.
    """
    unequal = [item for item in _unequal(prefill, decode) if not _allowed(item, prefill, decode)]
    if unequal or _miscount(prefill) or _miscount(decode):
        return unequal
    return list(_misfits(prefill, decode))


def refusal_text(found: list[Difference]) -> str:
    """One sentence for each difference: the field, both values, what to change."""
    parts = [f"{_both_values(item)} ({_REMEDY[item.field]}{_way_round(item.field)})" for item in found]
    return "prefill and decode cannot exchange KV pages: " + "; ".join(parts)


def _way_round(field: str) -> str:
    return f", or {OVERRIDE}={field} if they are the same" * (field in OVERRIDABLE)


def _waiver_text(waived: list[Difference]) -> str:
    parts = "; ".join(map(_both_values, waived))
    return (
        f"SERVED ALTHOUGH THEY DIFFER, because {OVERRIDE} says so on both sides: {parts}. "
        "If these are not the same, answers are wrong."
    )


def _unequal(prefill: LayoutRecord, decode: LayoutRecord) -> list[Difference]:
    found = [Difference(field, getattr(prefill, field), getattr(decode, field)) for field in _EQUAL]
    return [item for item in found if item.prefill != item.decode]


def _allowed(item: Difference, prefill: LayoutRecord, decode: LayoutRecord) -> bool:
    return item.field in OVERRIDABLE and item.field in prefill.allow and item.field in decode.allow


def _misfits(prefill: LayoutRecord, decode: LayoutRecord) -> Iterator[Difference]:
    if prefill.tp_size % decode.tp_size and decode.tp_size % prefill.tp_size:
        yield Difference("tp_size", prefill.tp_size, decode.tp_size)
        return
    if decode.pp_size not in (1, prefill.pp_size):
        yield Difference("pp_size", prefill.pp_size, decode.pp_size)
        return
    (first, end), (there_first, there_end) = prefill.layer_range, decode.layer_range
    if decode.pp_size == prefill.pp_size == 1 and prefill.held_layers != decode.held_layers:
        yield Difference("page_bytes", prefill.page_bytes, decode.page_bytes)
        return
    if first < there_first or end > there_end or (decode.pp_size > 1 and (first, end) != decode.layer_range):
        yield Difference("layer_range", prefill.layer_range, decode.layer_range)
        return
    if ends_model(prefill, decode):
        here, there = prefill.draft_buffers, decode.draft_buffers
        if here != there:
            yield Difference("draft_buffers", here, there)
            return
        if prefill.draft_kv_heads != decode.draft_kv_heads:
            yield Difference("draft_kv_heads", prefill.draft_kv_heads, decode.draft_kv_heads)
            return
    here_bytes, there_bytes = _head_bytes(prefill, prefill), _head_bytes(decode, prefill)
    if here_bytes != there_bytes:
        # Whole pages where they should be equal; otherwise what one head takes of them.
        pages = prefill.page_bytes, decode.page_bytes
        whole = prefill.tp_size == decode.tp_size and pages[0] != pages[1]
        yield Difference("page_bytes", *(pages if whole else (here_bytes, there_bytes)))


def _head_bytes(record: LayoutRecord, prefill: LayoutRecord) -> tuple[float, ...]:
    """Bytes of one head of a page, of each buffer of the layers that prefill holds, and of the draft."""
    own = len(record.page_bytes) - record.draft_buffers
    start = prefill.first_layer - record.first_layer
    layers = range(start, start + prefill.held_layers)
    target = [
        record.page_bytes[tensor * record.held_layers + layer] / _held(record, record.kv_heads)
        for tensor in range(record.tensors_per_layer)
        for layer in layers
    ]
    drafted = record.page_bytes[own:] if record.draft_buffers == prefill.draft_buffers else ()
    return (*target, *(nbytes / _held(record, record.draft_kv_heads) for nbytes in drafted))


def _held(record: LayoutRecord, kv_heads: int) -> int:
    return held_heads(kv_heads, record.tp_size, record.tp_rank).size


def _miscount(record: LayoutRecord) -> str | None:
    """Numbers that do not go together, of ranks and of buffers."""
    target = len(record.page_bytes) - record.draft_buffers
    if record.tp_rank >= record.tp_size or record.pp_rank >= record.pp_size:
        return f"there is no rank {_rank(record)}"
    if target <= 0 or target % record.tensors_per_layer:
        return f"{target} buffers of {record.tensors_per_layer} for each layer"
    return None


def _flaw(record: LayoutRecord) -> str | None:
    """Heads and pages that no rank of a real server could have. The record's numbers go together."""
    target = len(record.page_bytes) - record.draft_buffers
    heads = [record.kv_heads] * target + [record.draft_kv_heads] * record.draft_buffers
    for kv_heads in set(heads):
        if not can_spread(kv_heads, record.tp_size):
            return f"{kv_heads} KV heads cannot be spread over {record.tp_size} ranks"
    pieces = (_held(record, kv_heads) * record.page_size for kv_heads in heads)
    if any(nbytes % piece for nbytes, piece in zip(record.page_bytes, pieces, strict=True)):
        return "its pages do not divide into tokens and heads"
    return None


def _rank(record: LayoutRecord) -> str:
    return f"TP {record.tp_rank} of {record.tp_size}, PP {record.pp_rank} of {record.pp_size}"


def _both_values(item: Difference) -> str:
    here, there = item.prefill, item.decode
    if isinstance(here, tuple) and isinstance(there, tuple) and max(len(here), len(there)) > 4:
        if len(here) != len(there) or here == there:  # equal: they do not fit what else the records say
            return f"{item.field}: prefill has {_short(here)}, decode has {_short(there)}"
        pairs = enumerate(zip(here, there, strict=True))
        place, here, there = next((place, *pair) for place, pair in pairs if pair[0] != pair[1])
        return f"{item.field}: prefill has {here!r}, decode has {there!r} in buffer {place}"
    return f"{item.field}: prefill has {here!r}, decode has {there!r}"


def _short(buffers: tuple[object, ...]) -> str:
    return f"{len(buffers)} buffers" + "".join(f", the first {size}" for size in buffers[:1])
