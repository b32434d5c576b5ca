"""A layout record for tests to change: one rank of a small GQA model."""

from sglang_pd_fabric.messenger.layout import PROTOCOL, LayoutRecord

LAYOUT = LayoutRecord(
    protocol=PROTOCOL,
    model="0123456789abcdef",
    attention="gqa",
    page_size=64,
    dtype="bfloat16",
    order="nhd",
    page_bytes=(16384,) * 124,
    aux_bytes=(64,) * 10,
    layers=62,
    kv_heads=8,
    head_dim=128,
    tp_size=8,
    tp_rank=0,
    pp_size=1,
    pp_rank=0,
    first_layer=0,
    draft_buffers=0,
    draft_kv_heads=1,
    provider="tcp",
    version="0.1.0",
)
