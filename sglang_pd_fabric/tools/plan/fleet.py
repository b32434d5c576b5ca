"""Any number of servers at once: queues of prompts by Lindley's recursion, decode as a mean field.

Requests are spread over servers at random, so each server sees a Poisson stream of its own, and thousands of
them are thousands of columns of one array. ``simulate`` plays the same servers event by event; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, isinf

import numpy as np

from sglang_pd_fabric.tools.plan.costs import Server
from sglang_pd_fabric.tools.plan.outcome import Outcome
from sglang_pd_fabric.tools.plan.steady import Decoding, Mix, decoding, mixed_pass_s
from sglang_pd_fabric.tools.plan.transfer import Link
from sglang_pd_fabric.tools.plan.workload import Floats, Workload

_ROUNDS = 240  # requests of each server
_SETTLE = 40  # of them that only fill the queues
_LEAST = 4800  # requests in all
_POINTS = 96  # of a table over prompt lengths
Seconds = Callable[[int], float]
Lookup = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Fleet:
    """The kinds of servers.

    ``chunk``: tokens of a prompt's pass; ``budget``: of a pass that decode rides along with.
    """

    prefill: Server
    decode: Server
    link: Link
    chunk: int
    budget: int


@dataclass(frozen=True)
class Forecast:
    """Answers for one fleet and one workload."""

    fleet: Fleet
    workload: Workload
    seed: int = 0
    tables: dict[str, Lookup] = field(default_factory=dict, compare=False, repr=False)

    def at(self, qps: float) -> Forecast:
        """The same at another load; what does not depend on load is not computed again."""
        return replace(self, workload=replace(self.workload, qps=qps))

    def disaggregated(self, prefills: int, decodes: int) -> Outcome:
        """So many prefill and decode servers."""
        fleet, qps = self.fleet, self.workload.qps
        prompts = self._prompts(prefills)
        service = self._served("prefill", fleet.prefill, fleet.chunk)(prompts)
        waited = _waits(self._rng, qps / prefills, service)
        shown = self._table("shown", lambda tokens: fleet.link.layerwise_s(tokens, fleet.chunk))(prompts)
        state = decoding(fleet.decode, qps / decodes, self._outputs_mean, self._context)
        tpot = self._steps(fleet.decode, state, prompts)
        ttft = waited + service + shown + fleet.prefill.constants.join_s + 1.5 * tpot
        busy = {
            "prefill": _busy(qps / prefills, service),
            "decode": _resident(fleet.decode, state, self._context),
        }
        return self._outcome(ttft, tpot, busy, _busy(qps / prefills, service), state)

    def colocated(self, servers: int, mixed: bool) -> Outcome:
        """So many servers that do both.

        ``mixed``: decode rides along with chunks of prompts, else it stands still.
        """
        fleet, rate, server = self.fleet, self.workload.qps / servers, self.fleet.decode
        size = fleet.budget if mixed else fleet.chunk
        prompts = self._prompts(servers)
        alone = self._served(f"both {mixed}", server, size)(prompts)
        mean = float(np.mean(self._lengths))
        passes = float(np.mean(np.ceil(self._lengths / size)))
        mix = Mix(rate, passes, float(np.mean(alone)) / passes, mean / passes, mixed)
        state = decoding(server, rate, self._outputs_mean, self._context, mix)
        if isinf(state.step_s):
            never = np.full(prompts.size, np.inf)
            return Outcome(never, never, {"both": 1.0}, settled=False)
        step = self._steps(server, state, prompts)
        extra = mixed_pass_s(server, state.batch, self._context, mix) - mix.pass_s if mixed else 0.0
        service = alone + extra * np.ceil(prompts / size)
        ttft = _waits(self._rng, rate, service) + service + server.decode_s(state.batch, self._context) / 2
        outputs = self.workload.outputs.sample(self._rng, prompts.size).reshape(prompts.shape)
        met = self._rng.poisson(rate * passes * outputs * state.step_s)
        lost = mix.pass_s + (extra - step if mixed else 0.0)
        busy = {"both": min(1.0, _busy(rate, service) + _resident(server, state, self._context))}
        return self._outcome(ttft, step + met * lost / outputs, busy, _busy(rate, service), state)

    @cached_property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    @cached_property
    def _lengths(self) -> Floats:
        return self.workload.prompts.sample(np.random.default_rng(self.seed + 1), _LEAST)

    @cached_property
    def _outputs_mean(self) -> float:
        return float(np.mean(self.workload.outputs.sample(np.random.default_rng(self.seed + 2), _LEAST)))

    @cached_property
    def _context(self) -> float:
        """Tokens of a request half-way through its answer."""
        return float(np.mean(self._lengths)) + self._outputs_mean / 2

    def _prompts(self, servers: int) -> Floats:
        rounds = max(_ROUNDS, ceil(_LEAST / servers))
        return self.workload.prompts.sample(self._rng, rounds * servers).reshape(rounds, servers)

    def _steps(self, server: Server, state: Decoding, prompts: Floats) -> Floats:
        """Seconds of a decode pass as each request sees it: not all have as many others beside them.

        Over a stay their mean number varies by two thirds of what it does at a moment (M/G/inf).
        """
        if isinf(state.batch):
            return np.full(prompts.shape, np.inf)
        spread = (state.batch * 2 / 3) ** 0.5
        at = np.linspace(0, state.batch + 6 * spread + 1, _POINTS)
        passes = np.array([server.decode_s(others + 1, self._context) for others in at])
        others = np.maximum(0.0, self._rng.normal(state.batch, spread, prompts.shape))
        steps: Floats = np.interp(others, at, passes)
        return steps

    def _served(self, name: str, server: Server, size: int) -> Lookup:
        return self._table(name, lambda tokens: server.prompt_s(tokens, size))

    def _table(self, name: str, seconds: Seconds) -> Lookup:
        """Seconds by prompt length, between a few lengths by straight lines."""
        if name in self.tables:
            return self.tables[name]
        low, high = float(np.min(self._lengths)), float(np.max(self._lengths)) * 2
        at = np.unique(np.rint(np.geomspace(max(1.0, low / 2), high, _POINTS)))
        values = np.array([seconds(int(tokens)) for tokens in at])
        self.tables[name] = lambda tokens: np.interp(tokens, at, values)
        return self.tables[name]

    def _outcome(
        self, ttft: Floats, tpot: Floats, busy: dict[str, float], prompts_busy: float, state: Decoding
    ) -> Outcome:
        first = min(_SETTLE, len(ttft) // 2)
        settled = prompts_busy < 1 and not isinf(state.step_s)
        return Outcome(ttft[first:].ravel(), tpot[first:].ravel(), busy, settled)


def _waits(rng: np.random.Generator, rate: float, service: Floats) -> Floats:
    """Seconds that each prompt waits; one column for each server, rows in order of arrival."""
    gaps = rng.exponential(1 / rate, service.shape)
    waited = np.zeros_like(service)
    for row in range(1, len(service)):
        waited[row] = np.maximum(0.0, waited[row - 1] + service[row - 1] - gaps[row])
    return waited


def _busy(rate: float, service: Floats) -> float:
    return rate * float(np.mean(service))


def _resident(server: Server, state: Decoding, context: float) -> float:
    """Share of the KV cache that requests in decode take."""
    return 1.0 if isinf(state.batch) else state.batch * context / server.kv_tokens
