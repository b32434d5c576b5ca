"""A whole plan as plain data: what a token costs, what a server carries, how many serve, what users see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sglang_pd_fabric.tools.plan.errors import PlanError
from sglang_pd_fabric.tools.plan.fleet import Fleet, Forecast
from sglang_pd_fabric.tools.plan.outcome import Outcome, Targets
from sglang_pd_fabric.tools.plan.simulate.run import Arrangement, Played, play
from sglang_pd_fabric.tools.plan.size import Sizing, size
from sglang_pd_fabric.tools.plan.workload import Workload

JSON_VERSION = 1
SIMULATED = 16  # servers at most: beyond that the closed forms speak alone


@dataclass(frozen=True)
class Question:
    """What is asked. ``servers``: prefill and decode servers; None: as many as the objectives need."""

    fleet: Fleet
    workload: Workload
    targets: Targets
    servers: tuple[int, int] | None
    requests: int
    seed: int

    @property
    def prompt(self) -> int:
        """Tokens of a prompt of mean length."""
        return max(1, round(self.workload.prompts.mean()))


@dataclass(frozen=True)
class Answer:
    """What was found: what servers carry, how many serve, what users see, computed and played."""

    question: Question
    sizing: Sizing
    servers: tuple[int, int]
    forecasts: dict[Arrangement, Outcome]
    played: Sequence[Played]

    def data(self) -> dict[str, Any]:
        """The same as plain data. ``version`` changes when a field changes its meaning."""
        question, (prefills, decodes) = self.question, self.servers
        figures = partial(Outcome.figures, qps=question.workload.qps, targets=question.targets)
        return {
            "version": JSON_VERSION,
            "model": _model(question),
            "transfer": _transfer(question),
            "server_carries_qps": self.sizing._asdict(),
            "decode_servers_for_one_prefill": self.sizing.ratio,
            "servers": {"prefill": prefills, "decode": decodes, "gpus": gpus(question.fleet, self.servers)},
            "forecast": {each.value: figures(outcome) for each, outcome in self.forecasts.items()},
            "simulated": {each.arrangement.value: figures(each.outcome()) for each in self.played},
        }


def make(question: Question) -> Answer:
    """The plan.

    Raises:
        PlanError: no number of servers meets the objectives, or a request does not fit a server.
    """
    sizing = size(question.fleet, question.workload, question.targets, question.seed)
    servers = choose(question, sizing)
    base = Forecast(question.fleet, question.workload, question.seed)
    forecasts = {each: forecast(base, each, servers) for each in Arrangement}
    return Answer(question, sizing, servers, forecasts, simulated(question, servers))


def choose(question: Question, sizing: Sizing) -> tuple[int, int]:
    """Prefill and decode servers: those that were given, or as many as the objectives need."""
    if question.servers:
        return question.servers
    if not sizing.prefill_qps:
        alone = question.fleet.prefill.prompt_s(question.prompt, question.fleet.chunk)
        raise PlanError(
            f"--ttft {1e3 * question.targets.ttft_s:g}: even an idle fleet is too slow for "
            f"{question.targets.share:.0%} of the prompts; one of {question.prompt} tokens alone computes "
            f"for "
            f"{1e3 * alone:.0f} ms; give more time, shorter prompts or more GPUs a server (--prefill-tp)"
        )
    if not sizing.decode_qps:
        step = question.fleet.decode.decode_s(1, question.prompt)
        raise PlanError(
            f"--tpot {1e3 * question.targets.tpot_s:g}: a request alone takes {1e3 * step:.1f} ms for a "
            f"token, "
            "or its KV cache does not fit; give more time, shorter requests or more GPUs a server (--tp)"
        )
    return sizing.servers(question.workload.qps)


def gpus(fleet: Fleet, servers: tuple[int, int]) -> int:
    """GPUs of so many prefill and decode servers."""
    return servers[0] * fleet.prefill.tp + servers[1] * fleet.decode.tp


def forecast(each: Forecast, arrangement: Arrangement, servers: tuple[int, int]) -> Outcome:
    """What users see by the closed forms; as many GPUs serve in each arrangement."""
    if arrangement is Arrangement.DISAGGREGATED:
        return each.disaggregated(*servers)
    return each.colocated(_alike(each.fleet, servers), mixed=arrangement is Arrangement.CHUNKED)


def simulated(question: Question, servers: tuple[int, int]) -> Sequence[Played]:
    """The same, played; nothing for more than ``SIMULATED`` servers or without requests."""
    if sum(servers) > SIMULATED or not question.requests:
        return []
    trace = question.workload.trace(question.requests, question.seed)
    alike = (0, _alike(question.fleet, servers))
    return [
        play(
            question.fleet,
            each,
            trace,
            servers if each is Arrangement.DISAGGREGATED else alike,
            question.seed,
        )
        for each in Arrangement
    ]


def _alike(fleet: Fleet, servers: tuple[int, int]) -> int:
    return max(1, gpus(fleet, servers) // fleet.decode.tp)


def _model(question: Question) -> dict[str, Any]:
    model, prefill, decode = question.fleet.prefill.model, question.fleet.prefill, question.fleet.decode
    return {
        "name": model.name,
        "parameters": model.total_params,
        "active_parameters": model.active_params,
        "layers": model.layers,
        "kv_bytes_per_token": model.kv_token_bytes(prefill.kv_bytes),
        "kv_bytes_per_token_and_layer": model.kv_layer_bytes(prefill.kv_bytes),
        "kv_bytes_per_token_on_a_prefill_gpu": prefill.kv_per_gpu_token,
        "kv_bytes_per_token_on_a_decode_gpu": decode.kv_per_gpu_token,
        "kv_tokens_of_a_decode_server": decode.kv_tokens,
        "weight_bytes_on_a_decode_gpu": decode.weights_per_gpu,
    }


def _transfer(question: Question) -> dict[str, float | int]:
    """For a prompt of mean length; a layer's figures are those of its first chunk."""
    fleet, prompt = question.fleet, question.prompt
    first = min(prompt, fleet.chunk)
    return {
        "prompt_tokens": prompt,
        "prompt_bytes": prompt * fleet.prefill.model.kv_token_bytes(fleet.prefill.kv_bytes),
        "layer_bytes": first * fleet.prefill.model.kv_layer_bytes(fleet.prefill.kv_bytes),
        "pages_of_a_rank_and_layer": fleet.link.layer_pages(first),
        "page_bytes": fleet.link.page_bytes,
        "layer_compute_ms": 1e3 * fleet.prefill.prompt_s(first, fleet.chunk) / fleet.prefill.model.layers,
        "layer_transfer_ms": 1e3 * fleet.link.layer_s(first),
        "prefill_ms": 1e3 * fleet.prefill.prompt_s(prompt, fleet.chunk),
        "exposed_layerwise_ms": 1e3 * fleet.link.layerwise_s(prompt, fleet.chunk),
        "exposed_chunkwise_ms": 1e3 * fleet.link.chunkwise_s(prompt, fleet.chunk),
    }
