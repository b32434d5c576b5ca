"""Refuses models of which some layers do not look at every token: linear attention, sliding windows.

The planner multiplies one layer's KV cache by the number of layers. Where layers are of several kinds that is
two to four times what is kept or read. Which fields of a ``config.json`` say so was read in SGLang 0.5.23
(``configs/model_config.py`` and the configs beside it) and in the configs of Hugging Face.
"""

from collections.abc import Callable
from typing import Any

from sglang_pd_fabric.tools.plan.errors import PlanError

_FULL = ("full_attention", "attention")
_WINDOWS = ("sliding_window", "sliding_window_size", "attention_chunk_size")


def refuse_uneven_layers(name: str, config: dict[str, Any]) -> None:
    """Lets a config pass whose layers all have full attention, as far as it says.

    Raises:
        PlanError: some have not; the message has the field, its value and what to do.
    """
    for field, is_full in _KINDS.items():
        value = config.get(field)
        if value is not None and not is_full(value):
            raise _refusal(name, field, value)
    for field in _WINDOWS:
        if _cuts_off(config.get(field), config):
            raise _refusal(name, field, config[field])


def _all_in(*values: object) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(each in values for each in value)


def _equals(number: int) -> Callable[[Any], bool]:
    return lambda value: bool(value == number)


def _never(_value: Any) -> bool:
    return False


# What tells the kinds of layers apart, and whether its value means that all of them have full attention.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "layer_types": _all_in(*_FULL),
    "layers_block_type": _all_in(*_FULL),
    "mixer_types": _all_in(*_FULL),
    "full_attention_interval": _equals(1),
    "attn_layer_period": _equals(1),
    "layer_group_size": _equals(1),
    "attn_type_list": _all_in(1),
    "hybrid_layer_pattern": _all_in(0),
    "local_layer_ids": _all_in(),
    "num_kv_shared_layers": _equals(0),
    "hybrid_override_pattern": _never,
    "linear_attn_config": _never,
    "compress_ratios": _never,
}


def _cuts_off(window: Any, config: dict[str, Any]) -> bool:
    """Whether a layer forgets what lies before the window. Qwen's configs have one that no layer uses."""
    if not window or config.get("use_sliding_window") is False or config.get("layer_types") is not None:
        return False
    longest = config.get("max_position_embeddings")
    return not (isinstance(window, int) and isinstance(longest, int) and window >= longest)


def _refusal(name: str, field: str, value: object) -> PlanError:
    said = repr(value)
    said = said if len(said) <= 80 else f"{said[:77]}..."
    return PlanError(
        f"--model {name}: its {field} is {said}: not every layer looks at all tokens, and the planner would "
        "count cache and attention as if each did. Plan with a model whose layers all have full attention; "
        f"if those of this one have it, give a copy of its config.json without {field}"
    )
