"""Runs contenders in rounds, each measurement in fresh processes, so that noise falls on all alike.

Fresh processes also because an idle NIXL agent keeps a core busy, and because what memory a process gets
differs from one to the next.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.tools.bench import child
from sglang_pd_fabric.tools.bench.job import Job, OwnCost, Reading
from sglang_pd_fabric.tools.bench.results import Ours, Record, summarise
from sglang_pd_fabric.tools.bench.workload import Shape

PROVIDERS = ("shm", "tcp", "mapped")
PEERS = ("memcpy", "nixl", "mooncake")
_MODULES = {"nixl": "nixl", "mooncake": "mooncake"}
NATIVE = "sglang_pd_fabric.tools.bench._native"


class ChoiceError(ValueError):
    """Something that was asked for is not here; the message says how to get it."""


class Contender(NamedTuple):
    engine: str
    transport: str


class Outcome(NamedTuple):
    records: list[Record]
    failures: list[str]


class Plan(NamedTuple):
    """What is to be measured, and how often."""

    shapes: Sequence[Shape]
    contenders: Sequence[Contender]
    rounds: int
    repetitions: int
    seed: int
    libfabric: str
    python: str = sys.executable  # has the peers


def contenders(providers: Sequence[str], peers: Sequence[str], *, with_raw4: bool) -> list[Contender]:
    """Everybody who takes part, in the order of a round.

    Raises:
        ChoiceError: a provider has no profile.
    """
    result = []
    for provider in providers:
        if provider not in (*PROFILES, "mapped"):
            raise ChoiceError(f"there is no profile for provider {provider}; there is {', '.join(PROFILES)}")
        result.append(Contender("ours", provider))
        if provider != "mapped":
            result += [Contender("raw", provider)] + [Contender("raw4", provider)] * with_raw4
    for peer in peers:
        transports = {"memcpy": ("auto",), "nixl": ("auto", "tcp"), "mooncake": ("tcp",)}[peer]
        if peer == "memcpy" and "mapped" in providers:
            transports = ("auto", "mapped")
        result += [Contender(peer, transport) for transport in transports]
    return result


def check_installed(plan: Plan) -> None:
    """Whether all that the plan needs can be imported.

    Raises:
        ChoiceError: something cannot.
    """
    if importlib.util.find_spec(NATIVE) is None:
        raise ChoiceError(f"{NATIVE} was not built; install this package from its sources")
    for peer in dict.fromkeys(contender.engine for contender in plan.contenders):
        if peer in _MODULES:
            code = f"import importlib.util as u, sys; sys.exit(u.find_spec({_MODULES[peer]!r}) is None)"
            if subprocess.run([plan.python, "-c", code], check=False).returncode:
                raise ChoiceError(
                    f"{plan.python} has no {peer}: pip install 'sglang-pd-fabric[peers]', or name another "
                    "interpreter with --peers-python, or leave it out of --peers"
                )


def run(plan: Plan, progress: Callable[[str], None]) -> Outcome:
    """Measures all, shape by shape. Who fails at a shape has no record of it; the others go on."""
    records, failures = [], []
    idle: dict[str, float] = {}  # by transport: it does not depend on the shape
    for shape in plan.shapes:
        readings: dict[Contender, list[list[Reading]]] = {each: [] for each in plan.contenders}
        for number in range(plan.rounds):
            for contender in list(readings):
                progress(f"{shape.name}, round {number + 1} of {plan.rounds}: {' '.join(contender)}")
                try:
                    readings[contender].append(_measure(plan, contender, shape, number))
                except child.ContenderError as error:
                    failures.append(str(error))
                    del readings[contender]
        for contender, rounds in readings.items():
            ours = None
            if contender.engine == "ours":
                progress(f"{shape.name}: own cost over {contender.transport}")
                try:
                    ours = _ours(plan, contender, shape, idle)
                except child.ContenderError as error:
                    failures.append(str(error))
            records.append(summarise(*contender, shape, rounds, ours))
    return Outcome(records, failures)


def _ours(plan: Plan, contender: Contender, shape: Shape, idle: dict[str, float]) -> Ours:
    """What is measured of our engine only."""
    job = _job(plan, contender, shape, 0)
    if contender.transport not in idle:
        idle[contender.transport] = child.run("idle", job._replace(repetitions=1))
    own = OwnCost.from_json(child.run("own_cost", job))
    return Ours(own, idle[contender.transport])


def _job(plan: Plan, contender: Contender, shape: Shape, number: int) -> Job:
    return Job(*contender, shape, plan.repetitions, plan.seed + number, plan.libfabric)


def _measure(plan: Plan, contender: Contender, shape: Shape, number: int) -> list[Reading]:
    python = plan.python if contender.engine in _MODULES else sys.executable
    return [Reading(*values) for values in child.run("pair", _job(plan, contender, shape, number), python)]
