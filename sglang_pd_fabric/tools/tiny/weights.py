"""Seeded weights that make every cached token of every layer matter to the answer.

The tests compare answers, so a wrong page must show in an answer: in a few tokens, however long the prompt.
Ordinary random weights fail at that. Attention then averages over all tokens, the average hardly moves when
one of 1,500 changes, and neighbouring positions of deeper layers hold nearly the same values. Four devices
help, and none of them costs determinism, since the changes they amplify are thousands of times larger than
the rounding noise of fp32:

1. *Opposed heads.* Query heads come in pairs that read the same values and enter the output with opposite
   signs. What all tokens have in common cancels; what is left is a sum of differences of weights, to which
   each token contributes about as much as any other: one token of n changes 1/sqrt(n) of it, not 1/n.
2. *A fast rope.* The base of the rotary embedding is so small that all dimensions turn quickly. Attention
   weights then look random over positions, instead of depending on the token alone, of which a text has few.
3. *Growing layers.* Each layer's outputs outweigh the sum of those before it, so that the last layers'
   caches matter as well. Normalisation keeps everything in range.
4. *Answers spelled in bits.* The logits of 64 printable characters are built of six random directions, one
   per bit of the character's number. The answer shows six signs of the last hidden state: any of them can
   flip, answers do not repeat, and they are plain text, so text equals tokens.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_pd_fabric.tools.tiny.config import Model

Tensor = npt.NDArray[np.float32]
Weights = dict[str, Tensor]

# Standard deviations of attention scores. Low ones spread the attention: with opposed heads that loses
# nothing, and every token takes part in every step. Latent attention scores the token and its position
# apart, and it is the position that must count.
SHARPNESS_GQA = 0.7
SHARPNESS_TOKEN_MLA = 0.05
SHARPNESS_POSITION_MLA = 1.0
# Opposed heads leave little of the values; this brings the rest back to the size of the other terms.
ATTENTION_GAIN = 40.0
LAYER_GROWTH = 3.0
GATE_GAIN = 2.0

FIRST_ANSWER_TOKEN = ord("0")
ANSWER_BITS = 6
# Other printable characters stay possible where a grammar demands them, and are not chosen otherwise.
OTHER_GAIN = 0.25
PRINTABLE = slice(ord(" "), ord("~") + 1)


class _Source:
    """Draws each tensor from the seed and its own name, so that none depends on the order of drawing."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.weights: Weights = {}

    def draw(self, name: str, outputs: int, inputs: int, gain: float = 1.0) -> Tensor:
        """Draw a matrix that maps inputs of variance one to outputs of variance ``gain`` squared."""
        generator = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        drawn = generator.standard_normal((outputs, inputs)) * (gain / np.sqrt(inputs))
        return np.asarray(drawn, dtype=np.float32)

    def matrix(self, name: str, outputs: int, inputs: int, gain: float = 1.0) -> Tensor:
        """Draw a matrix of the checkpoint and return it, to be changed in place where needed."""
        return self.weights.setdefault(name, self.draw(name, outputs, inputs, gain))

    def constant(self, name: str, size: int, value: float = 1.0) -> None:
        self.weights[name] = np.full(size, value, dtype=np.float32)


def make_weights(model: Model, config: dict[str, Any], seed: int) -> Weights:
    """Return the tensors of a checkpoint under the names that transformers and SGLang expect."""
    source = _Source(seed)
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    # Rows of unit variance: an embedding is looked up, not multiplied.
    source.matrix("model.embed_tokens.weight", vocabulary, hidden, gain=np.sqrt(hidden))
    source.constant("model.norm.weight", hidden)
    _spell_bits(source, vocabulary, hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix, growth = f"model.layers.{layer}.", LAYER_GROWTH**layer
        source.constant(prefix + "input_layernorm.weight", hidden)
        source.constant(prefix + "post_attention_layernorm.weight", hidden)
        attention = _latent_attention if model == "mla" else _grouped_attention
        attention(source, prefix + "self_attn.", config, ATTENTION_GAIN * growth)
        if model == "mla" and layer < config["first_k_dense_replace"]:
            _gated(source, prefix + "mlp.", hidden, config["intermediate_size"], growth)
        else:
            _experts(source, prefix + "mlp.", config, growth)
    return source.weights


def _spell_bits(source: _Source, vocabulary: int, hidden: int) -> None:
    head = source.matrix("lm_head.weight", vocabulary, hidden, gain=OTHER_GAIN)
    others = head[PRINTABLE].copy()
    head[:] = 0
    head[PRINTABLE] = others
    directions = source.draw("answer bits", ANSWER_BITS, hidden)
    numbers = np.arange(2**ANSWER_BITS)[:, None]
    signs = 2.0 * ((numbers >> np.arange(ANSWER_BITS)) & 1) - 1.0
    head[FIRST_ANSWER_TOKEN : FIRST_ANSWER_TOKEN + 2**ANSWER_BITS] = signs @ directions


def _grouped_attention(source: _Source, prefix: str, config: dict[str, Any], gain: float) -> None:
    hidden, dim = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    source.matrix(prefix + "q_proj.weight", heads * dim, hidden)
    source.matrix(prefix + "k_proj.weight", kv_heads * dim, hidden)
    source.matrix(prefix + "v_proj.weight", kv_heads * dim, hidden)
    # Qwen3 normalises queries and keys, so these two alone set the spread of the scores.
    source.constant(prefix + "q_norm.weight", dim, SHARPNESS_GQA**0.5)
    source.constant(prefix + "k_norm.weight", dim, SHARPNESS_GQA**0.5)
    _oppose(source.matrix(prefix + "o_proj.weight", hidden, heads * dim, gain), heads)


def _latent_attention(source: _Source, prefix: str, config: dict[str, Any], gain: float) -> None:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    token, position = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    value, q_rank, kv_rank = config["v_head_dim"], config["q_lora_rank"], config["kv_lora_rank"]
    source.constant(prefix + "q_a_layernorm.weight", q_rank)
    source.constant(prefix + "kv_a_layernorm.weight", kv_rank)
    source.matrix(prefix + "q_a_proj.weight", q_rank, hidden)
    query = source.matrix(prefix + "q_b_proj.weight", heads * (token + position), q_rank)
    query = query.reshape(heads, token + position, q_rank)
    query[:, :token] *= SHARPNESS_TOKEN_MLA**0.5
    query[:, token:] *= SHARPNESS_POSITION_MLA**0.5
    latent = source.matrix(prefix + "kv_a_proj_with_mqa.weight", kv_rank + position, hidden)
    latent[kv_rank:] *= SHARPNESS_POSITION_MLA**0.5
    expand = source.matrix(prefix + "kv_b_proj.weight", heads * (token + value), kv_rank)
    pairs = expand.reshape(heads // 2, 2, token + value, kv_rank)
    pairs[:, :, :token] *= SHARPNESS_TOKEN_MLA**0.5
    pairs[:, 1, token:] = pairs[:, 0, token:]  # opposed heads read the same values
    _oppose(source.matrix(prefix + "o_proj.weight", hidden, heads * value, gain), heads)


def _oppose(output: Tensor, heads: int) -> None:
    pairs = output.reshape(output.shape[0], heads // 2, 2, -1)
    pairs[:, :, 1] = -pairs[:, :, 0]


def _experts(source: _Source, prefix: str, config: dict[str, Any], gain: float) -> None:
    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]
    experts = config.get("n_routed_experts") or config["num_experts"]
    source.matrix(prefix + "gate.weight", experts, hidden)
    if "n_shared_experts" in config:  # only DeepSeek corrects its gate and has experts for all tokens
        source.constant(prefix + "gate.e_score_correction_bias", experts, 0.0)
        _gated(source, prefix + "shared_experts.", hidden, inner * config["n_shared_experts"], gain)
    for expert in range(experts):
        _gated(source, f"{prefix}experts.{expert}.", hidden, inner, gain)


def _gated(source: _Source, prefix: str, hidden: int, inner: int, gain: float) -> None:
    source.matrix(prefix + "gate_proj.weight", inner, hidden, GATE_GAIN)
    source.matrix(prefix + "up_proj.weight", inner, hidden)
    source.matrix(prefix + "down_proj.weight", hidden, inner, gain)
