"""Our rule of who meets whom is SGLang's own: the same ranks, and the same number of pulls."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_pd_fabric.messenger.sharding import pulls_per_writer, sources

pytestmark = pytest.mark.sglang

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
FITTING = [(p, d) for p, d in product(SIZES, SIZES) if p % d == 0 or d % p == 0]


def resolved(prefill_tp: int, decode_tp: int, decode_rank: int, *, is_mla: bool) -> Any:
    """SGLang's own answer for a decode rank. ``engine_rank`` is its rank in the attention TP group."""
    conn = pytest.importorskip("sglang.srt.disaggregation.common.conn", reason="SGLang is not installed")
    info = conn.PrefillServerInfo(prefill_tp, 1, 1, 2, 64, "auto", True)
    decode = SimpleNamespace(
        attn_tp_size=decode_tp,
        attn_cp_size=1,
        attn_cp_rank=0,
        pp_size=1,
        pp_rank=0,
        is_mla_backend=is_mla,
        is_hybrid_mla_backend=False,
        enable_all_cp_ranks_for_transfer=False,
        kv_args=SimpleNamespace(engine_rank=decode_rank),
    )
    conn.CommonKVManager._resolve_rank_mapping(decode, info)
    return info


@pytest.mark.parametrize("is_mla", [False, True])
def test_sglang_connects_the_ranks_that_meet(is_mla: bool) -> None:
    for prefill_tp, decode_tp in FITTING:
        for rank in range(decode_tp):
            info = resolved(prefill_tp, decode_tp, rank, is_mla=is_mla)
            assert info.target_tp_ranks == list(sources(prefill_tp, decode_tp, rank))
            assert info.target_pp_ranks == [0, 1]
            assert info.required_dst_info_num == pulls_per_writer(prefill_tp, decode_tp)
