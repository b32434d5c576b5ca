"""The layout record: how one rank's KV cache lies in memory, and which model it belongs to.

Both sides exchange it once per peer pair, before any page moves. What a pair cannot serve is refused
(``compatibility``); who writes what and how many units that is follows from the two records (``sharding``).
"""

from typing import Annotated

import msgspec

PROTOCOL = 3

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(gt=0)]


class LayoutRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """One rank's side of the compatibility check.

    Attributes:
        protocol: version of the messages and of the immediate.
        model: identity of the model: its class and a digest of its config, or its hub name.
        attention: ``mla`` (one latent per token, the same on every rank) or ``gqa``.
        page_size: tokens in a page.
        dtype: element type of the KV cache.
        order: ``nhd`` ([token, head, dim] in a page) or ``hnd`` ([head, token, dim]).
        page_bytes: bytes of one page, for each KV buffer of this rank in the order of the pools: all K, then
            all V (MLA: all latents), then the draft's.
        aux_bytes: bytes of one row, for each metadata buffer.
        layers: attention layers of the model, over all stages.
        kv_heads: KV heads of the model, over all ranks; 1 for MLA.
        head_dim: elements of one head's K; for MLA the latent and its rotary part.
        tp_size: ranks over which the heads are spread (attention TP; with DP attention, of one group).
        tp_rank: this rank's place among them.
        pp_size: pipeline stages.
        pp_rank: this rank's stage.
        first_layer: the model's number of the first attention layer that this rank holds.
        draft_buffers: how many of the last buffers are a draft (MTP) model's.
        draft_kv_heads: KV heads of the draft over all ranks; 1 for MLA, and where there is no draft.
        provider: libfabric provider of the engine.
        version: of this package, for the message only; unequal versions of one protocol are served.
        weights: identity of the weights (a digest, or the revision of a hub name).
        compute_dtype: element type that the model computes in.
        draft_model: identity of the draft's checkpoint and weights; empty where there is no draft.
        sglang: version of SGLang.
        integrity: checksums of what is written are sent and compared (``integrity.py``).
        allow: names of fields that may differ, if the other side allows it too (``compatibility.py``).
    """

    protocol: int
    model: str
    attention: str
    page_size: Positive
    dtype: str
    order: str
    page_bytes: tuple[Count, ...]
    aux_bytes: tuple[Positive, ...]
    layers: Positive
    kv_heads: Positive
    head_dim: Positive
    tp_size: Positive
    tp_rank: Count
    pp_size: Positive
    pp_rank: Count
    first_layer: Count
    draft_buffers: Count
    draft_kv_heads: Positive
    provider: str
    version: str
    weights: str = ""
    compute_dtype: str = ""
    draft_model: str = ""
    sglang: str = ""
    integrity: bool = False
    allow: tuple[str, ...] = ()

    @property
    def tensors_per_layer(self) -> int:
        """Buffers of each layer: K and V, or one latent."""
        return 1 if self.attention == "mla" else 2

    @property
    def held_layers(self) -> int:
        """Layers of the model (not of the draft) that this rank holds."""
        return (len(self.page_bytes) - self.draft_buffers) // self.tensors_per_layer

    @property
    def layer_range(self) -> tuple[int, int]:
        """The first of them, and the one after the last."""
        return self.first_layer, self.first_layer + self.held_layers
