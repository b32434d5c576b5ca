"""Writes a checkpoint directory that SGLang and transformers load like any other."""

from __future__ import annotations

import json
from pathlib import Path

from sglang_pd_fabric.tools.tiny.config import END_TOKEN, Model, model_config
from sglang_pd_fabric.tools.tiny.tokenizer import save_tokenizer
from sglang_pd_fabric.tools.tiny.weights import make_weights


def make_checkpoint(model: Model, directory: Path, seed: int = 0) -> Path:
    """Write config, weights, tokenizer and chat template into ``directory`` and return it.

    The same model and seed always give the same bytes.
    """
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    config = model_config(model)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"bos_token_id": END_TOKEN, "eos_token_id": END_TOKEN, "pad_token_id": END_TOKEN}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_tokenizer(directory)
    weights = make_weights(model, config, seed)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
