"""The layout record: how one rank's KV cache lies in memory, and which model it belongs to.

Both sides exchange it once per peer pair, before any page moves. What a pair cannot serve is refused on
both sides with the fields that differ; the number of units that decode expects is computed from the
prefill's record, never from decode's own.
"""

from typing import NamedTuple

import msgspec

PROTOCOL = 1


class LayoutRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """One rank's side of the compatibility check.

    Attributes:
        protocol: version of the messages and of the immediate.
        model: identity of the checkpoint (a digest), equal for equal weights.
        attention: ``mla`` (one latent per token, the same on every rank) or ``gqa``.
        page_size: tokens in a page.
        dtype: element type of the KV cache.
        order: ``nhd`` ([token, head, dim] in a page) or ``hnd`` ([head, token, dim]).
        page_bytes: bytes of one page, for each KV buffer in the order of the pools (all K, then all V).
        aux_bytes: bytes of one row, for each metadata buffer.
        layers: attention layers of the model, over all stages.
        kv_heads: KV heads of the model, over all ranks; 1 for MLA.
        head_dim: elements of one head's K; for MLA the latent and its rotary part.
        tp_size: ranks over which the heads are spread (attention TP).
        pp_size: pipeline stages.
        provider: libfabric provider of the engine.
        version: of this package, for the message only; unequal versions of one protocol are served.
    """

    protocol: int
    model: str
    attention: str
    page_size: int
    dtype: str
    order: str
    page_bytes: tuple[int, ...]
    aux_bytes: tuple[int, ...]
    layers: int
    kv_heads: int
    head_dim: int
    tp_size: int
    pp_size: int
    provider: str
    version: str


class Difference(NamedTuple):
    field: str
    prefill: object
    decode: object


# What each field is set by, so that a refusal can say what to change.
_REMEDY = {
    "protocol": "install the same sglang-pd-fabric on both sides",
    "model": "serve the same checkpoint (--model-path, --revision) on both sides",
    "attention": "serve the same checkpoint (--model-path) on both sides",
    "page_size": "use the same --page-size on both sides",
    "dtype": "use the same --dtype and --kv-cache-dtype on both sides",
    "order": "use the same KV layout (SGLANG_USE_HND_KVCACHE) on both sides",
    "page_bytes": "use the same --dtype, --kv-cache-dtype and parallel sizes on both sides",
    "aux_bytes": "use the same metadata options (--disaggregation-enable-kv-checksum, ...) on both sides",
    "layers": "serve the same checkpoint (--model-path) on both sides",
    "kv_heads": "serve the same checkpoint (--model-path) on both sides",
    "head_dim": "serve the same checkpoint (--model-path) on both sides",
    "tp_size": "use the same attention TP size on both sides",
    "pp_size": "use the same --pp-size on both sides",
    "provider": "use the same SGLANG_PD_FABRIC_PROVIDER on both sides",
}


def differences(prefill: LayoutRecord, decode: LayoutRecord) -> list[Difference]:
    """The fields in which the two sides differ and which stand in the way of a transfer."""
    return [
        Difference(field, getattr(prefill, field), getattr(decode, field))
        for field in _REMEDY
        if getattr(prefill, field) != getattr(decode, field)
    ]


def refusal_text(found: list[Difference]) -> str:
    """One sentence for each difference: the field, both values, what to change."""
    parts = [
        f"{item.field}: prefill has {_short(item.prefill)}, decode has {_short(item.decode)} "
        f"({_REMEDY[item.field]})"
        for item in found
    ]
    return "prefill and decode cannot exchange KV pages: " + "; ".join(parts)


def _short(value: object) -> str:
    if isinstance(value, tuple) and len(value) > 4:
        return f"{len(value)} buffers, the first {value[0]}, the last {value[-1]}"
    return repr(value)
