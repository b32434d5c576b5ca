"""What a measuring process is told and what it answers: plain data that goes through JSON.

The process may run under another interpreter (the peers'), so nothing but the standard library and numpy
is needed to read a job.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sglang_pd_fabric.tools.bench.workload import Shape

LIMIT_S = 60.0  # ends a repetition that hangs


class Job(NamedTuple):
    """One contender, one shape, a few repetitions in two fresh processes."""

    engine: str
    transport: str
    shape: Shape
    repetitions: int
    seed: int
    libfabric: str
    pass_ratio: float = 0.0  # of ``overlap``: length of a forward pass, in transfers without one

    @classmethod
    def from_json(cls, values: list[Any]) -> Job:
        engine, transport, shape, *others = values
        return cls(engine, transport, Shape(*shape), *others)


class Reading(NamedTuple):
    """One repetition. Seconds from the hand-over until everything is there, and until the sender is quiet."""

    full_s: float
    quiet_s: float
    cpu_s: float


class Submit(NamedTuple):
    """Microseconds that ``Transfer.submit`` of one layer takes its caller."""

    asleep: float  # the I/O thread has to be woken
    awake: float  # it is at work


class Stages(NamedTuple):
    """Microseconds for a page in each part of our code, over the null provider."""

    cutting: float  # of plans into pages' addresses
    posting: float  # a write's ledger entry, choice of NIC and call
    completing: float  # end of a write
    counting: float  # of its immediate


class Wake(NamedTuple):
    """Microseconds from ``submit`` to the first write, with the I/O thread asleep."""

    p50: float
    p99: float


class OwnCost(NamedTuple):
    """What our own code costs over a provider that costs nothing."""

    us_per_page: float
    submit: dict[int, Submit]  # by the number of pages
    stages: Stages | None  # none where no provider takes part
    wake: Wake

    @classmethod
    def from_json(cls, values: list[Any]) -> OwnCost:
        per_page, submit, stages, wake = values
        by_pages = {int(pages): Submit(*taken) for pages, taken in submit.items()}
        return cls(per_page, by_pages, Stages(*stages) if stages else None, Wake(*wake))
