"""A model as the planner sees it: the parameters that a token meets, the bytes of KV cache that it leaves.

Read from the ``config.json`` of Hugging Face: our own copies by name (``configs/``), any other by path.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from sglang_pd_fabric.tools.plan.errors import PlanError
from sglang_pd_fabric.tools.plan.layers import refuse_uneven_layers

_FOLDER = "configs"
_FP8 = ("fp8", "fbgemm_fp8", "modelopt")


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek): ranks and head sizes, all in elements."""

    kv_rank: int
    rope: int
    q_rank: int
    nope: int
    value: int


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder.

    ``weight_bytes``: of a parameter. ``latent`` is None for grouped-query attention.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    dense_layers: int
    dense_width: int
    experts: int
    experts_per_token: int
    shared_experts: int
    expert_width: int
    weight_bytes: int
    latent: Latent | None

    @property
    def expert_layers(self) -> int:
        """Layers with a mixture of experts."""
        return self.layers - self.dense_layers

    @cached_property
    def attention_params(self) -> int:
        """Parameters of one layer's projections."""
        if self.latent is None:
            return self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        mla = self.latent
        query = mla.nope + mla.rope
        into_q = (
            self.hidden * mla.q_rank + mla.q_rank * self.heads * query
            if mla.q_rank
            else self.hidden * self.heads * query
        )
        into_kv = self.hidden * (mla.kv_rank + mla.rope) + mla.kv_rank * self.heads * (mla.nope + mla.value)
        return into_q + into_kv + self.heads * mla.value * self.hidden

    @property
    def expert_params(self) -> int:
        """Parameters of one expert (gate, up, down)."""
        return 3 * self.hidden * self.expert_width

    @cached_property
    def always_params(self) -> int:
        """Parameters that every token meets beside attention: dense layers, shared experts, routers."""
        dense = self.dense_layers * 3 * self.hidden * self.dense_width
        shared = self.shared_experts * self.expert_params + self.hidden * self.experts
        return dense + self.expert_layers * shared

    @cached_property
    def total_params(self) -> int:
        """All parameters, with embeddings and head."""
        experts = self.expert_layers * self.experts * self.expert_params
        return (
            self.layers * self.attention_params + self.always_params + experts + 2 * self.vocab * self.hidden
        )

    @cached_property
    def active_params(self) -> int:
        """Parameters that one token meets in the layers and the head."""
        experts = self.expert_layers * self.experts_per_token * self.expert_params
        return self.layers * self.attention_params + self.always_params + experts + self.vocab * self.hidden

    def kv_layer_bytes(self, kv_bytes: int, ranks: int = 1) -> int:
        """Bytes of KV cache that one token leaves in one layer on one of so many tensor-parallel ranks.

        Heads are split; where there are more ranks than heads, and with latent attention, ranks hold copies.
        """
        if self.latent is not None:
            return (self.latent.kv_rank + self.latent.rope) * kv_bytes
        return 2 * max(1, self.kv_heads // ranks) * self.head_dim * kv_bytes

    def kv_token_bytes(self, kv_bytes: int) -> int:
        """Bytes of KV cache of one token in all layers, counted once."""
        return self.layers * self.kv_layer_bytes(kv_bytes)

    @property
    def prefill_pair_flops(self) -> int:
        """Floating-point operations of one layer's attention for one query and one key."""
        if self.latent is None:
            return 4 * self.heads * self.head_dim
        return 2 * self.heads * (self.latent.nope + self.latent.rope + self.latent.value)

    @property
    def decode_pair_flops(self) -> int:
        """The same in decode, where latent attention works on the compressed cache."""
        if self.latent is None:
            return 4 * self.heads * self.head_dim
        return 2 * self.heads * (2 * self.latent.kv_rank + self.latent.rope)


def names() -> list[str]:
    """The models that are shipped."""
    return sorted(Path(each.name).stem for each in _configs().iterdir() if each.name.endswith(".json"))


def load_model(name: str) -> Model:
    """A shipped model by its name, or any by the path of its ``config.json`` or of the folder that has one.

    Raises:
        PlanError: there is no such model, or see ``parse_config``.
    """
    if name in names():
        text = _configs().joinpath(f"{name}.json").read_text()
    else:
        path = Path(name)
        path = path / "config.json" if path.is_dir() else path
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(
                f"--model {name}: no such model, and no config.json to read there ({type(error).__name__}); "
                f"give one of {', '.join(names())}, or the path of a config.json"
            ) from error
    try:
        config = json.loads(text)
    except ValueError as error:
        raise PlanError(f"--model {name}: not JSON ({error}); give a Hugging Face config.json") from error
    return parse_config(name, config)


def parse_config(name: str, config: Any) -> Model:
    """A model from the fields of a ``config.json``.

    Raises:
        PlanError: a field is missing or no positive whole number, or says that not all layers have full
            attention; the message names it.
    """
    if not isinstance(config, dict):
        raise PlanError(f"--model {name}: a JSON object is needed, this is a {type(config).__name__}")
    if isinstance(config.get("text_config"), dict):
        config = config["text_config"]
    refuse_uneven_layers(name, config)
    fields = _Fields(name, config)
    heads, hidden = fields.need("num_attention_heads"), fields.need("hidden_size")
    layers = fields.need("num_hidden_layers")
    experts = fields.any_of("n_routed_experts", "num_experts", "num_local_experts")
    latent = None
    if fields.any_of("kv_lora_rank"):
        latent = Latent(
            fields.need("kv_lora_rank"),
            fields.need("qk_rope_head_dim"),
            fields.any_of("q_lora_rank"),
            fields.need("qk_nope_head_dim"),
            fields.need("v_head_dim"),
        )
    dense_layers = min(fields.any_of("first_k_dense_replace"), layers) if experts else layers
    return Model(
        name=Path(name).stem if name.endswith(".json") and "config.json" not in name else name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=fields.any_of("num_key_value_heads") or heads,
        head_dim=fields.any_of("head_dim") or hidden // heads,
        vocab=fields.need("vocab_size"),
        dense_layers=dense_layers,
        dense_width=fields.need("intermediate_size") if dense_layers else 0,
        experts=experts,
        experts_per_token=fields.need("num_experts_per_tok") if experts else 0,
        shared_experts=fields.any_of("n_shared_experts") if experts else 0,
        expert_width=(fields.any_of("moe_intermediate_size") or fields.need("intermediate_size"))
        if experts
        else 0,
        weight_bytes=1 if _quantization(config) in _FP8 else 2,
        latent=latent,
    )


class _Fields:
    """Whole numbers of a config."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self._name, self._config = name, config

    def any_of(self, *keys: str) -> int:
        """The first of these fields that is there; 0 for none."""
        value = next((self._config[key] for key in keys if self._config.get(key) is not None), 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise PlanError(f"--model {self._name}: {'/'.join(keys)} is {value!r}; a whole number is needed")
        return value

    def need(self, key: str) -> int:
        """A field that must be there and positive."""
        value = self.any_of(key)
        if not value:
            raise PlanError(
                f"--model {self._name}: its config has no {key}; give the config.json of a decoder model"
            )
        return value


def _quantization(config: dict[str, Any]) -> str:
    quantization = config.get("quantization_config")
    return str(quantization.get("quant_method", "")) if isinstance(quantization, dict) else ""


def _configs() -> Any:
    return resources.files(__package__).joinpath(_FOLDER)
