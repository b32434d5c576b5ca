"""Sizes of models, against numbers computed by hand from their configs."""

import json
from pathlib import Path

import pytest

from sglang_pd_fabric.tools.plan.errors import PlanError
from sglang_pd_fabric.tools.plan.model import load_model, names, parse_config

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("name", "kv_bytes", "parameters", "active"),
    [
        ("deepseek-r1", (512 + 64) * 2 * 61, 671.0e9, 36.6e9),
        ("qwen3-235b", 2 * 4 * 128 * 2 * 94, 235.1e9, 21.6e9),
        ("qwen3-coder-480b", 2 * 8 * 128 * 2 * 62, 480.2e9, 34.5e9),
        ("yi-34b", 2 * 8 * 128 * 2 * 60, 34.4e9, 33.9e9),
    ],
)
def test_shipped_models_have_their_published_sizes(
    name: str, kv_bytes: int, parameters: float, active: float
) -> None:
    model = load_model(name)
    assert model.kv_token_bytes(2) == kv_bytes
    assert model.kv_token_bytes(1) * 2 == kv_bytes
    assert model.total_params == pytest.approx(parameters, rel=2e-3)
    assert model.active_params == pytest.approx(active, rel=2e-3)


def test_the_list_is_what_is_shipped() -> None:
    assert names() == ["deepseek-r1", "qwen3-235b", "qwen3-coder-480b", "yi-34b"]


def test_attention_and_experts_by_hand() -> None:
    qwen = load_model("qwen3-235b")
    assert qwen.attention_params == 2 * 4096 * 64 * 128 + 2 * 4096 * 4 * 128
    assert qwen.expert_params == 3 * 4096 * 1536
    assert qwen.prefill_pair_flops == qwen.decode_pair_flops == 2 * 2 * 64 * 128
    r1 = load_model("deepseek-r1")
    queries = 7168 * 1536 + 1536 * 128 * 192
    keys = 7168 * 576 + 512 * 128 * 256
    assert r1.attention_params == queries + keys + 128 * 128 * 7168
    assert r1.prefill_pair_flops == 2 * 128 * (192 + 128)
    assert r1.decode_pair_flops == 2 * 128 * (576 + 512)
    assert (r1.weight_bytes, qwen.weight_bytes) == (1, 2)


def test_heads_are_split_over_ranks_until_each_has_one() -> None:
    qwen = load_model("qwen3-235b")
    assert [qwen.kv_layer_bytes(2, ranks) for ranks in (1, 2, 4, 8)] == [2048, 1024, 512, 512]


def test_latent_pages_are_whole_on_every_rank() -> None:
    assert load_model("deepseek-r1").kv_layer_bytes(2, 8) == 1152


@pytest.mark.parametrize("folder", [True, False])
def test_any_config_is_read_by_its_path(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    model = load_model(str(tmp_path if folder else path))
    assert (model.layers, model.head_dim, model.dense_layers, model.experts) == (2, 16, 2, 0)
    attention = 64 * 16 * 2 * (4 + 2)
    assert model.total_params == 2 * (attention + 3 * 64 * 128) + 2 * 100 * 64


def test_a_config_with_vision_around_it_is_read_by_its_text_part() -> None:
    assert parse_config("x", {"text_config": TINY}).layers == 2


@pytest.mark.parametrize("field", [field for field in TINY if field != "num_key_value_heads"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(PlanError, match=field):
        parse_config("mine", {key: value for key, value in TINY.items() if key != field})


def test_a_field_that_is_no_number_is_named() -> None:
    with pytest.raises(PlanError, match="hidden_size is 'wide'"):
        parse_config("mine", {**TINY, "hidden_size": "wide"})


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text("{")
    with pytest.raises(PlanError, match=f"{path}.*not JSON"):
        load_model(str(path))
