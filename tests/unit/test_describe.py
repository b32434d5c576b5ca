"""Which checkpoint it is: equal for copies, wherever they lie; another for other weights or configs."""

import json
from pathlib import Path

import pytest

from sglang_pd_fabric.integration.describe import identify

CONFIG = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 2}
WEIGHTS = bytes(range(256)) * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "one")


def checkpoint(folder: Path, weights: bytes = WEIGHTS, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_a_copy_is_the_same_checkpoint_and_what_computes_nothing_does_not_count(
    folder: Path, tmp_path: Path
) -> None:
    copy = checkpoint(tmp_path / "copy", _name_or_path="/elsewhere", transformers_version="5.0")
    (copy / "README.md").write_text("another")
    assert identify(str(copy), None) == identify(str(folder), None)


def test_another_config_has_another_model_and_the_same_weights(folder: Path, tmp_path: Path) -> None:
    here, there = identify(str(folder), None), identify(str(checkpoint(tmp_path / "x", rope_theta=9)), None)
    assert here.weights == there.weights
    assert here.model != there.model
    assert here.model.startswith("Qwen3MoeForCausalLM-")


@pytest.mark.parametrize("place", [0, len(WEIGHTS) // 2, len(WEIGHTS) - 1])
def test_another_step_of_the_training_has_other_weights(folder: Path, tmp_path: Path, place: int) -> None:
    other = bytearray(WEIGHTS)
    other[place] ^= 1
    here, there = identify(str(folder), None), identify(str(checkpoint(tmp_path / "x", bytes(other))), None)
    assert here.model == there.model
    assert here.weights != there.weights


def test_a_missing_shard_is_seen(folder: Path) -> None:
    before = identify(str(folder), None)
    (folder / "model-2.safetensors").write_bytes(b"")
    assert identify(str(folder), None) != before


def test_a_hub_name_is_itself_with_its_revision() -> None:
    assert identify("Qwen/Qwen3-Coder", None) == ("Qwen/Qwen3-Coder", "main")
    assert identify("Qwen/Qwen3-Coder", "v2").weights == "v2"


def test_a_folder_without_a_config_has_a_name_all_the_same(tmp_path: Path) -> None:
    assert identify(str(tmp_path), None).model.startswith("unknown-")
