"""Seconds of one forward pass of one server: what is computed, what is read, what goes over NVLink.

A *server* is one SGLang instance on up to 8 GPUs of a node. Each kind of product takes the longer of its
arithmetic and of reading its weights; attention and collectives come on top, and a fixed time for each layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from sglang_pd_fabric.tools.plan.constants import CONSTANTS, Constants
from sglang_pd_fabric.tools.plan.errors import PlanError
from sglang_pd_fabric.tools.plan.hardware import Gpu
from sglang_pd_fabric.tools.plan.model import Model

MAX_GPUS = 8  # of one server: collectives between nodes are not modelled
_USABLE = 0.9  # of a GPU's memory, as SGLang's mem_fraction_static leaves


class Batch(NamedTuple):
    """What one pass does. ``pairs``: queries times keys of prompts; ``context``: keys that decode reads."""

    prefill: float = 0
    pairs: float = 0
    decode: float = 0
    context: float = 0


def pairs(context: float, tokens: float) -> float:
    """Query-key pairs of so many new tokens behind a context, each seeing itself and all before it."""
    return tokens * context + tokens * (tokens + 1) / 2


@dataclass(frozen=True)
class Server:
    """``tp`` GPUs; with ``dp`` > 1 attention is data-parallel (SGLang's ``--enable-dp-attention``)."""

    model: Model
    gpu: Gpu
    tp: int
    dp: int = 1
    kv_bytes: int = 2
    constants: Constants = CONSTANTS

    def __post_init__(self) -> None:
        if not 1 <= self.tp <= MAX_GPUS:
            raise PlanError(f"--tp {self.tp}: a server has 1 to {MAX_GPUS} GPUs here, all in one node")
        if self.dp < 1 or self.tp % self.dp:
            raise PlanError(f"--dp {self.dp}: must divide --tp {self.tp}; try 1 or {self.tp}")
        if self.model.heads % self.attention_ranks:
            raise PlanError(
                f"--tp {self.tp}: {self.model.name} has {self.model.heads} attention heads, which "
                f"{self.attention_ranks} ranks cannot share evenly; give a --tp / --dp that divides them"
            )
        if self.kv_tokens <= 0:
            raise PlanError(
                f"--tp {self.tp}: weights of {self.model.name} take {self.weights_per_gpu / 1e9:.0f} GB on "
                f"each {self.gpu.name}, which has {self.gpu.memory / 1e9:.0f} GB, {_USABLE:.0%} of them "
                "usable; give more GPUs, larger ones (--gpu) or a config with fp8 weights"
            )

    @property
    def attention_ranks(self) -> int:
        """Ranks that share one request's heads."""
        return self.tp // self.dp

    @cached_property
    def weights_per_gpu(self) -> float:
        """Bytes. Attention is copied to each data-parallel group, the rest is split over all GPUs."""
        attention = self.model.layers * self.model.attention_params
        rest = self.model.total_params - attention
        return self.model.weight_bytes * (attention / self.attention_ranks + rest / self.tp)

    @cached_property
    def kv_per_gpu_token(self) -> int:
        """Bytes that a token takes on each GPU that keeps it."""
        return self.model.layers * self.model.kv_layer_bytes(self.kv_bytes, self.attention_ranks)

    @cached_property
    def kv_tokens(self) -> int:
        """Tokens of KV cache that the server can keep."""
        return int(self.dp * (_USABLE * self.gpu.memory - self.weights_per_gpu) / self.kv_per_gpu_token)

    def pass_s(self, batch: Batch) -> float:
        """Seconds of a forward pass."""
        rows = batch.prefill + batch.decode
        if not rows:
            return 0.0
        return self._fixed + self._products(rows) + self._attention(batch) + rows * self._collectives

    def prompt_s(self, tokens: int, chunk: int) -> float:
        """Seconds of a prompt's passes of at most ``chunk`` tokens, alone on the server."""
        return sum(self.pass_s(batch) for batch in chunks(tokens, chunk))

    def decode_s(self, requests: float, context: float) -> float:
        """Seconds of a pass with so many requests, of ``context`` tokens each."""
        return self.pass_s(Batch(decode=requests, context=requests * context))

    def distinct_experts(self, rows: float) -> float:
        """Experts of a layer that at least one of so many tokens is sent to, if each choice is as likely."""
        share = self.model.experts_per_token / self.model.experts
        return float(self.model.experts * (1 - (1 - share) ** rows))

    @cached_property
    def _fixed(self) -> float:
        return self.model.layers * self.constants.layer_s

    @cached_property
    def _collectives(self) -> float:
        """Seconds a token: two all-reduces a layer, or gather and scatter with data-parallel attention."""
        each = self.model.hidden * 2 * 2 * (self.tp - 1) / self.tp
        count = 1 if self.dp > 1 else 2
        return self.model.layers * count * each / (self.constants.link_share * self.gpu.link_rate)

    @cached_property
    def _rates(self) -> tuple[float, float, float]:
        """FLOP/s of dense products and of experts', bytes/s of memory."""
        known = self.constants
        fp8 = self.model.weight_bytes == 1 and self.gpu.has_fp8
        peak = self.gpu.bf16_flops * (known.fp8_speed if fp8 else 1.0)
        return known.dense_share * peak, known.expert_share * peak, known.memory_share * self.gpu.memory_rate

    def _products(self, rows: float) -> float:
        model, half = self.model, self.constants.half_rows
        dense, expert, memory = self._rates
        attention = model.layers * model.attention_params / self.attention_ranks
        always = model.always_params / self.tp
        head = model.vocab * model.hidden / self.tp
        total = max(
            2 * attention * _slowed(rows / self.dp, half) / dense, model.weight_bytes * attention / memory
        )
        total += max(2 * always * _slowed(rows, half) / dense, model.weight_bytes * always / memory)
        total += model.weight_bytes * head / memory
        if model.experts:
            each = model.expert_layers * model.expert_params / self.tp
            reading = model.weight_bytes * each * self.distinct_experts(rows) / memory
            total += max(2 * each * model.experts_per_token * rows / expert, reading)
        return total

    def _attention(self, batch: Batch) -> float:
        model, ranks = self.model, self.tp
        rate = self.constants.attention_share * self.gpu.bf16_flops
        total = model.layers * batch.pairs * model.prefill_pair_flops / ranks / rate
        if batch.context:
            computed = model.layers * batch.context * model.decode_pair_flops / ranks / rate
            total += max(computed, batch.context / self.dp * self.kv_per_gpu_token / self._rates[2])
        return total


def _slowed(rows: float, half: float) -> float:
    """Rows as they count in time: few leave most of a GPU idle, but then they wait for memory."""
    return rows + min(rows, half)


def chunks(tokens: int, chunk: int) -> list[Batch]:
    """A prompt's passes."""
    return [
        Batch(prefill=size, pairs=pairs(done, size))
        for done in range(0, tokens, chunk)
        for size in (min(chunk, tokens - done),)
    ]
