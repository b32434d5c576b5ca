"""Seconds of passes and transfers, against numbers computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.tools.plan.constants import CONSTANTS
from sglang_pd_fabric.tools.plan.costs import Batch, Server, chunks, pairs
from sglang_pd_fabric.tools.plan.errors import PlanError
from sglang_pd_fabric.tools.plan.hardware import GPUS, NICS, Nic, load_nic
from sglang_pd_fabric.tools.plan.model import load_model
from sglang_pd_fabric.tools.plan.transfer import Link

from .fleets import server

QWEN = server("qwen3-235b", tp=4)
SLOW = Nic("slow", 0.0, 1e9, 1e6)


def test_pairs_count_each_token_itself_and_all_before_it() -> None:
    assert pairs(0, 3) == 1 + 2 + 3
    assert pairs(10, 2) == 11 + 12


def test_chunks_cover_a_prompt_once() -> None:
    batches = chunks(5000, 2048)
    assert [batch.prefill for batch in batches] == [2048, 2048, 904]
    assert sum(batch.pairs for batch in batches) == pairs(0, 5000)


def test_one_token_meets_exactly_its_experts() -> None:
    assert server().distinct_experts(1) == pytest.approx(8)
    assert server().distinct_experts(2) == pytest.approx(16 - 8 * 8 / 256)


def test_a_pass_of_a_dense_model_by_hand() -> None:
    """Yi-34B on one of two A100: 512 rows without attention."""
    yi = server("yi-34b", GPUS["a100"], tp=2)
    layer = 7168 * 128 * 2 * (56 + 8) + 3 * 7168 * 20480
    head = 64000 * 7168
    products = 2 * 60 * layer / 2 * (512 + CONSTANTS.half_rows) / (0.65 * 312e12) + 2 * head / 2 / (
        0.9 * 2.039e12
    )
    reduced = 60 * 2 * 512 * (7168 * 2 * 2 * 1 / 2) / (0.78 * 300e9)
    assert yi.pass_s(Batch(prefill=512)) == pytest.approx(60 * CONSTANTS.layer_s + products + reduced)


def test_decode_reads_the_keys_of_its_requests() -> None:
    alone = QWEN.pass_s(Batch(decode=4))
    read = QWEN.pass_s(Batch(decode=4, context=4 * 10_000)) - alone
    assert read == pytest.approx(4 * 10_000 * 94 * 512 / (0.9 * 4.8e12))


def test_nothing_takes_no_time() -> None:
    assert QWEN.pass_s(Batch()) == 0


def test_weights_and_room_for_tokens_by_hand() -> None:
    assert QWEN.weights_per_gpu == pytest.approx(2 * load_model("qwen3-235b").total_params / 4)
    room = 0.9 * 141e9 - QWEN.weights_per_gpu
    assert QWEN.kv_tokens == int(room / (94 * 512))


def test_data_parallel_attention_copies_attention_and_splits_requests() -> None:
    r1, dp = server(), server(dp=8)
    attention = 61 * load_model("deepseek-r1").attention_params
    assert dp.weights_per_gpu - r1.weights_per_gpu == pytest.approx(attention * (1 - 1 / 8))
    assert dp.kv_tokens > 6 * r1.kv_tokens


@given(
    tokens=st.integers(1, 20_000),
    chunk=st.integers(64, 20_000),
    model=st.sampled_from(["yi-34b", "deepseek-r1"]),
)
def test_chunks_never_make_a_prompt_faster(tokens: int, chunk: int, model: str) -> None:
    one = server(model, GPUS["h200"])
    assert one.prompt_s(tokens, chunk) >= one.prompt_s(tokens, tokens) * (1 - 1e-9)


@given(requests=st.integers(1, 500), context=st.integers(1, 50_000))
def test_more_requests_make_a_pass_longer_and_a_token_cheaper(requests: int, context: int) -> None:
    few, many = QWEN.decode_s(requests, context), QWEN.decode_s(requests + 1, context)
    assert few < many
    assert many / (requests + 1) < few / requests * (1 + 1e-9)


def test_a_layer_is_sent_page_by_page() -> None:
    link = Link(QWEN, NICS["efa"], page_tokens=128)
    assert link.page_bytes == 128 * 128 * 2
    assert [link.layer_pages(tokens) for tokens in (1, 128, 129)] == [2, 2, 4]
    assert link.layer_s(129) == pytest.approx(CONSTANTS.handoff_s + 4 * CONSTANTS.page_s)
    together = Link(QWEN, NICS["efa"], page_tokens=128, one_thread=True)
    assert together.layer_s(129) == pytest.approx(CONSTANTS.handoff_s + 4 * 4 * CONSTANTS.page_s)


def test_the_wire_is_the_limit_where_it_is_slow() -> None:
    link = Link(QWEN, SLOW, page_tokens=128)
    assert link.layer_s(1280) == pytest.approx(CONSTANTS.handoff_s + 20 * 32_768 / 1e6)


def test_latent_pages_are_sent_once_and_have_one_buffer() -> None:
    link = Link(server(), NICS["efa"], page_tokens=64, one_thread=True)
    assert (link.page_bytes, link.layer_pages(640)) == (64 * 1152, 10)
    assert link.layer_s(640) == pytest.approx(CONSTANTS.handoff_s + 10 * 64 * 1152 / NICS["efa"].byte_rate)


def test_hidden_layers_show_only_the_last() -> None:
    link = Link(QWEN, NICS["efa"], page_tokens=128)
    assert link.layerwise_s(16_384, 16_384) == pytest.approx(link.layer_s(16_384))
    assert link.layerwise_s(100_000, 16_384) == pytest.approx(link.layer_s(100_000 % 16_384))


def test_layers_that_queue_up_show_all_but_the_first_ones_shade() -> None:
    """One chunk over a slow wire: the NIC starts after the first layer and is never idle again."""
    link = Link(QWEN, SLOW, page_tokens=128)
    layer, computed = link.layer_s(4096), QWEN.prompt_s(4096, 4096)
    assert link.layerwise_s(4096, 4096) == pytest.approx(computed / 94 + 94 * layer - computed)


def test_a_chunk_at_its_end_shows_all_layers() -> None:
    link = Link(QWEN, NICS["efa"], page_tokens=128)
    layer = link.layer_s(4096) - CONSTANTS.handoff_s
    assert link.chunkwise_s(4096, 4096) == pytest.approx(94 * layer + CONSTANTS.handoff_s)


@given(
    tokens=st.integers(1, 60_000),
    chunk=st.sampled_from([512, 2048, 8192]),
    gbps=st.sampled_from([1, 10, 400]),
)
def test_layer_by_layer_shows_no_more_than_the_wire_needs(tokens: int, chunk: int, gbps: int) -> None:
    link = Link(QWEN, load_nic(f"gbps={gbps},mops=2,us=30"), page_tokens=64)
    shown = link.layerwise_s(tokens, chunk)
    total = 94 * sum(link.layer_s(int(batch.prefill)) for batch in chunks(tokens, chunk))
    assert 0 < shown <= total * (1 + 1e-9)


@pytest.mark.parametrize(
    ("tp", "dp", "model", "flag"),
    [
        (16, 1, "deepseek-r1", "--tp 16"),
        (8, 3, "deepseek-r1", "--dp 3"),
        (1, 1, "deepseek-r1", "--tp 1"),
        (5, 1, "yi-34b", "--tp 5"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_its_flag(tp: int, dp: int, model: str, flag: str) -> None:
    with pytest.raises(PlanError, match=flag):
        Server(load_model(model), GPUS["h200"], tp, dp)
