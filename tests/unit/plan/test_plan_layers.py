"""Which configs are refused: layers do not look at every token. The fields are those of published models."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sglang_pd_fabric.tools.cli import main
from sglang_pd_fabric.tools.plan.errors import PlanError
from sglang_pd_fabric.tools.plan.model import parse_config

TINY = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 32768,
}
KV_BYTES = 4 * 2 * 2 * 16 * 2  # layers, K and V, heads, elements of a head, bytes of one

UNEVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-Next": ("full_attention_interval", {"model_type": "qwen3_next", "full_attention_interval": 4}),
    "Qwen3-Next, spelled out": (
        "layer_types",
        {"full_attention_interval": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]},
    ),
    "gpt-oss": (
        "layer_types",
        {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "Gemma 2": ("sliding_window", {"model_type": "gemma2", "sliding_window": 4096}),
    "Gemma 3": ("sliding_window", {"sliding_window": 1024, "sliding_window_pattern": 6}),
    "Gemma 3n": ("num_kv_shared_layers", {"num_kv_shared_layers": 2}),
    "Mistral 7B v0.1": ("sliding_window", {"model_type": "mistral", "sliding_window": 4096}),
    "Qwen2 that uses its window": ("sliding_window", {"sliding_window": 4096, "use_sliding_window": True}),
    "Llama 4": ("attention_chunk_size", {"attention_chunk_size": 8192}),
    "Jamba": ("attn_layer_period", {"attn_layer_period": 8, "attn_layer_offset": 4}),
    "Zamba 2": ("layers_block_type", {"layers_block_type": ["mamba", "hybrid"] * 2}),
    "Nemotron-H": ("hybrid_override_pattern", {"hybrid_override_pattern": "M-M*"}),
    "Kimi Linear": ("linear_attn_config", {"linear_attn_config": {"full_attn_layers": [4]}}),
    "MiniMax-01": ("attn_type_list", {"attn_type_list": [0, 0, 0, 1]}),
    "MiMo-V2-Flash": ("hybrid_layer_pattern", {"hybrid_layer_pattern": [0, 1, 1, 1]}),
    "no list": ("layer_types", {"layer_types": "full_attention"}),
}
EVEN: dict[str, dict[str, Any]] = {
    "Qwen3": {"sliding_window": None, "use_sliding_window": False, "max_window_layers": 94},
    "Qwen2.5": {"sliding_window": 4096, "use_sliding_window": False},
    "Mistral 7B v0.3": {"sliding_window": None},
    "new Qwen3": {"layer_types": ["full_attention"] * 4, "sliding_window": None},
    "all full, with a window that no layer has": {
        "layer_types": ["full_attention"] * 4,
        "sliding_window": 128,
    },
    "Phi-3 mini 128k": {"sliding_window": 65536},
    "MiniMax-M2": {"attn_type_list": [1, 1, 1, 1]},
    "every layer": {"full_attention_interval": 1, "num_kv_shared_layers": 0, "local_layer_ids": []},
    "nothing said": {"attention_chunk_size": None, "linear_attn_config": None, "layer_types": None},
}


@pytest.mark.parametrize("model", UNEVEN)
@pytest.mark.parametrize("nested", [False, True], ids=["plain", "in text_config"])
def test_layers_that_are_not_alike_are_refused_by_field_and_value(model: str, nested: bool) -> None:
    field, fields = UNEVEN[model]
    config: dict[str, Any] = {**TINY, **fields}
    value = re.escape(repr(fields[field])[:77])
    with pytest.raises(PlanError, match=rf"its {field} is {value}.*full attention.*without {field}"):
        parse_config("mine", {"text_config": config} if nested else config)


@pytest.mark.parametrize("model", EVEN)
def test_full_attention_is_taken_however_the_config_says_it(model: str) -> None:
    assert parse_config("mine", {**TINY, **EVEN[model]}).kv_token_bytes(2) == KV_BYTES


def test_a_long_list_is_cut_short() -> None:
    with pytest.raises(PlanError) as refused:
        parse_config("mine", {**TINY, "layer_types": ["linear_attention"] * 1000})
    assert len(str(refused.value)) < 600


def test_the_command_says_so_and_prints_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, "full_attention_interval": 4}))
    assert main(["plan", "--model", str(path), "--qps", "1"]) == 1
    printed = capsys.readouterr()
    assert "full_attention_interval is 4" in printed.err
    assert not printed.out
