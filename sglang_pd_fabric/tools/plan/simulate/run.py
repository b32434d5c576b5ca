"""Plays a trace on servers of one arrangement and says what each request saw."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import simpy

from sglang_pd_fabric.tools.plan.errors import PlanError
from sglang_pd_fabric.tools.plan.fleet import Fleet
from sglang_pd_fabric.tools.plan.outcome import Outcome
from sglang_pd_fabric.tools.plan.simulate.engine import Engine, Job, Pass, Policy
from sglang_pd_fabric.tools.plan.workload import Request


class Arrangement(StrEnum):
    """How prefill and decode share servers."""

    COLOCATED = "colocated"
    CHUNKED = "chunked"
    DISAGGREGATED = "disaggregated"


@dataclass
class Played:
    """A trace that has been served to its end: jobs in order of arrival, servers, seconds in all."""

    arrangement: Arrangement
    jobs: list[Job]
    engines: list[Engine]
    seconds: float

    @property
    def passes(self) -> list[Pass]:
        """All passes of all servers."""
        return [each for engine in self.engines for each in engine.passes]

    def outcome(self) -> Outcome:
        """What each request saw. A single token's time between tokens is 0."""
        ttft = np.array([job.first_s - job.request.arrival_s for job in self.jobs])
        tpot = np.array([(job.last_s - job.first_s) / max(1, job.made - 1) for job in self.jobs])
        busy: dict[str, list[float]] = {}
        for engine in self.engines:
            busy.setdefault(engine.name.split()[0], []).append(engine.busy_s / self.seconds)
        return Outcome(ttft, tpot, {kind: float(np.mean(shares)) for kind, shares in busy.items()})


def play(
    fleet: Fleet,
    arrangement: Arrangement,
    requests: Sequence[Request],
    servers: tuple[int, int],
    seed: int = 0,
) -> Played:
    """Serves the trace to its end.

    Args:
        servers: prefill and decode servers; without disaggregation their sum is what serves.
        seed: of the router, which draws a server for each request.

    Raises:
        PlanError: a request is longer than a server's KV cache.
    """
    run = _Run(fleet, np.random.default_rng(seed))
    for request in requests:
        run.check(request)
    if arrangement is Arrangement.DISAGGREGATED:
        run.entries = run.engines("prefill", servers[0], Policy(True, False, fleet.chunk))
        run.decodes = run.engines("decode", servers[1], Policy(False, True, 0))
    else:
        mixed = arrangement is Arrangement.CHUNKED
        policy = Policy(True, True, fleet.budget if mixed else fleet.chunk, mixed)
        run.entries = run.engines("both", sum(servers), policy)
    jobs = [Job(request) for request in requests]
    run.env.process(run.arrive(jobs))
    run.env.run()
    return Played(arrangement, jobs, run.entries + run.decodes, float(run.env.now))


@dataclass
class _Run:
    """Servers and the way from one to the other."""

    fleet: Fleet
    rng: np.random.Generator
    env: simpy.Environment = field(default_factory=simpy.Environment)
    entries: list[Engine] = field(default_factory=list)
    decodes: list[Engine] = field(default_factory=list)

    def check(self, request: Request) -> None:
        room = min(self.fleet.prefill.kv_tokens, self.fleet.decode.kv_tokens)
        if request.prompt + request.output > room:
            raise PlanError(
                f"--prompt/--output: a request of {request.prompt} + {request.output} tokens came up, and a "
                f"server keeps {room}; give shorter lengths or more GPUs (--tp)"
            )

    def engines(self, kind: str, count: int, policy: Policy) -> list[Engine]:
        server = self.fleet.decode if policy.decodes else self.fleet.prefill
        return [
            Engine(self.env, f"{kind} {number}", server, policy, self._hand_over)
            for number in range(1, count + 1)
        ]

    def arrive(self, jobs: Sequence[Job]) -> Generator[simpy.Event, None, None]:
        for job in jobs:
            yield self.env.timeout(job.request.arrival_s - self.env.now)
            self._any(self.entries).submit(job)

    def _any(self, engines: list[Engine]) -> Engine:
        return engines[int(self.rng.integers(len(engines)))]

    def _hand_over(self, source: Engine, job: Job) -> None:
        self.env.process(self._transfer(source, job))

    def _transfer(self, source: Engine, job: Job) -> Generator[simpy.Event, None, None]:
        yield self.env.timeout(self.fleet.link.layerwise_s(job.request.prompt, self.fleet.chunk))
        source.release(job)
        yield self.env.timeout(self.fleet.prefill.constants.join_s)
        self._any(self.decodes).submit(job)
