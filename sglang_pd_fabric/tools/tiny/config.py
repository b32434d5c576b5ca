"""The model shapes: a Qwen3-MoE with grouped-query attention and a DeepSeek-V3 with latent attention.

`mqa` is the first with one KV head, so that two ranks hold the same one, as eight do of Qwen3-235B's four.

They are real architectures of SGLang at toy sizes, so that the servers run their ordinary code. The field
names are those of Hugging Face's ``config.json``.
"""

from __future__ import annotations

from typing import Any, Literal

Model = Literal["gqa", "mqa", "mla"]
MODELS: tuple[Model, ...] = ("gqa", "mqa", "mla")

CONTEXT_LENGTH = 8192
VOCABULARY = 259
END_TOKEN = 256
# Far below the usual 10,000; `weights` tells why.
ROPE_BASE = 10.0

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT_LENGTH,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 64,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "bos_token_id": END_TOKEN,
    "eos_token_id": END_TOKEN,
    "pad_token_id": END_TOKEN,
    "torch_dtype": "float32",
}

_GQA: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_experts": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "intermediate_size": 64,
    "rope_theta": ROPE_BASE,
    "rope_scaling": None,
}

_MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "intermediate_size": 64,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 1.0,
    "num_nextn_predict_layers": 0,
    "rope_theta": ROPE_BASE,
    # SGLang's DeepSeek code requires a scaled rope on a CPU, as the real models have one.
    "rope_scaling": {
        "type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": CONTEXT_LENGTH // 2,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}


def model_config(model: Model) -> dict[str, Any]:
    """Return the contents of ``config.json`` for one of the shapes."""
    return _COMMON | {"gqa": _GQA, "mqa": _GQA | {"num_key_value_heads": 1}, "mla": _MLA}[model]
