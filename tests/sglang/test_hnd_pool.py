"""Pages ordered by head: SGLang's own pool, our attention over it, and what our hooks tell the peers.

No server runs here: SGLang is given a configuration and a pool, in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_pd_fabric.integration import hnd

pytest.importorskip("sglang", reason="SGLang is not installed: pip install 'sglang-pd-fabric[sglang]'")

PAGE_SIZE, PAGES, HEADS, DIM = 16, 6, 4, 8
TOKENS = PAGE_SIZE * PAGES
FLOAT = 4


def make_pool(order: str) -> Any:
    import torch
    from sglang.srt.environ import envs
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    with envs.SGLANG_USE_HND_KVCACHE.override(order == "hnd"):
        return MHATokenToKVPool(
            size=TOKENS - PAGE_SIZE,  # SGLang adds a page that pads batches
            page_size=PAGE_SIZE,
            dtype=torch.float32,
            head_num=HEADS,
            head_dim=DIM,
            layer_num=1,
            device="cpu",
            enable_memory_saver=False,
        )


def configured(**fields: Any) -> AbstractContextManager[Any]:
    """SGLang's configuration of a decode server with our backend, changed as asked for."""
    from sglang.srt import runtime_context

    decode = {
        "disaggregation_mode": "decode",
        "disaggregation_transfer_backend": "fabric",
        "disaggregation_decode_retraction_backup": "none",
        "attention_backend": "fa3",
    }
    server: AbstractContextManager[Any] = runtime_context._CONTEXT.override_server_args(**(decode | fields))
    return server


def buffers(pool: Any) -> Any:
    return hnd.buffers_of_either_order(type(pool).get_contiguous_buf_infos, pool)


def filled(order: str) -> Any:
    """A pool with a token's number in each of its elements, scattered over the pages."""
    import torch

    pool = make_pool(order)
    slots = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(1))
    values = torch.arange(TOKENS * HEADS * DIM, dtype=torch.float32).reshape(TOKENS, HEADS, DIM)
    pool.set_kv_buffer(SimpleNamespace(layer_id=0), slots, values, -values)
    return pool


def test_a_head_of_a_page_is_contiguous_and_rows_are_found_by_token() -> None:
    import torch

    from sglang_pd_fabric.integration.cpu.attention import TokenRows

    by_head, by_token = filled("hnd"), filled("nhd")
    head = by_head.k_buffer[0][3, 2]
    assert head.is_contiguous()
    assert head.shape == (PAGE_SIZE, DIM)
    tokens = torch.tensor([0, 95, 17, 16, 15, 50])
    for one, other in ((by_head.k_buffer, by_token.k_buffer), (by_head.v_buffer, by_token.v_buffer)):
        assert torch.equal(TokenRows(one[0])[tokens], other[0][tokens])


def test_attention_over_pages_by_head_equals_attention_over_rows() -> None:
    import torch

    from sglang_pd_fabric.integration.cpu.attention import CpuAttentionBackend

    query = torch.randn(3, HEADS, DIM, generator=torch.Generator().manual_seed(2))
    requests = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(3)).reshape(2, TOKENS // 2)
    answers = []
    for order in ("nhd", "hnd"):
        pool = filled(order)
        runner = SimpleNamespace(device="cpu", req_to_token_pool=None, token_to_kv_pool=pool)
        backend = CpuAttentionBackend(runner)
        extended, decoded = torch.empty_like(query), torch.empty_like(query[:2])
        cache = pool.get_key_buffer(0) / 1000, pool.get_value_buffer(0)
        rows = torch.tensor([0, 1])
        backend._run_sdpa_forward_extend(
            query,
            extended,
            *cache,
            requests,
            rows,
            seq_lens=torch.tensor([40, 7]),
            extend_prefix_lens=torch.tensor([38, 6]),
            extend_seq_lens=torch.tensor([2, 1]),
            causal=True,
        )
        backend._run_sdpa_forward_decode(
            query[:2], decoded, *cache, requests, rows, seq_lens=torch.tensor([48, 9])
        )
        answers.append((extended, decoded))
    assert torch.equal(answers[0][0], answers[1][0])
    assert torch.equal(answers[0][1], answers[1][1])


@pytest.mark.parametrize("order", ["nhd", "hnd"])
def test_peers_learn_the_order_and_the_bytes_of_a_page(order: str) -> None:
    pool = make_pool(order)
    with configured():
        addresses, sizes, page_bytes = buffers(pool)
        assert hnd.page_order(lambda _pool: None, pool) == order
    assert page_bytes == [PAGE_SIZE * HEADS * DIM * FLOAT] * 2
    assert sizes == [PAGES * PAGE_SIZE * HEADS * DIM * FLOAT] * 2
    assert addresses == [pool.k_buffer[0].data_ptr(), pool.v_buffer[0].data_ptr()]
    assert pool.use_hnd is (order == "hnd")


def test_other_backends_keep_sglangs_refusal() -> None:
    with configured(disaggregation_transfer_backend="mooncake"):
        with pytest.raises(AssertionError, match="HND"):
            buffers(make_pool("hnd"))
        assert hnd.page_order(lambda _pool: None, make_pool("hnd")) is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"attention_backend": "triton"}, "backend triton does not read HND pages; use .*fa3"),
        ({"attention_backend": "torch_native"}, "backend torch_native does not"),
        ({"disaggregation_decode_retraction_backup": "cpu_tensor"}, "retraction-backup cpu_tensor"),
    ],
)
def test_what_would_misread_pages_by_head_is_refused(flags: dict[str, str], words: str) -> None:
    with configured(**flags), pytest.raises(hnd.UnsafeHndError, match=words):
        buffers(make_pool("hnd"))


def test_the_cpu_platform_has_a_reader_of_its_own() -> None:
    from sglang.srt.environ import envs

    with configured(attention_backend="torch_native"), envs.SGLANG_PLATFORM.override("pd_fabric_cpu"):
        assert buffers(make_pool("hnd"))


@pytest.mark.parametrize(("order", "fused"), [("nhd", True), ("hnd", False)])
def test_the_fused_store_is_for_rows_only(order: str, fused: bool) -> None:
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

    possible: Callable[[object], bool] = lambda _batch: True  # noqa: E731  (what SGLang says on a GPU)
    backend = SimpleNamespace(token_to_kv_pool=make_pool(order))
    with configured(), forward_context(ForwardContext(attn_backend=backend)):
        assert hnd.no_fused_store(possible, object()) is fused
