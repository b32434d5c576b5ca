"""From readings to records, ratios and goals: pure functions, and the tables that the command prints.

A repetition gives a reading, a round the median of its readings, a record the median over rounds. A ratio
is one of medians; beside it stand the smallest and largest ratio within a round, which say how far to
trust it on a noisy machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from sglang_pd_fabric.tools.bench.job import OwnCost, Reading, Stages
from sglang_pd_fabric.tools.bench.workload import Shape


class Record(TypedDict):
    """One engine over one transport with one shape. Rates are 1e9 bytes a second, medians of rounds."""

    engine: str
    transport: str
    shape: str
    gb_per_s: float
    gb_per_s_min: float
    gb_per_s_max: float
    gb_per_s_quiet: float  # until the sender has nothing in flight, instead of until all has arrived
    gb_per_s_rounds: list[float]
    cpu_s_per_gb: float  # both processes
    # Of ours only, otherwise None:
    us_per_page_own: float | None  # without provider and memory
    us_per_page_stages: dict[str, float] | None  # its parts; None for mapped peers
    us_per_submit: dict[str, list[float]] | None  # pages of a layer -> I/O thread asleep, awake
    us_to_first_write: list[float] | None  # from a submit that wakes the I/O thread: p50, p99
    idle_percent: float | None  # of a core, that the I/O thread uses without traffic


class Goal(NamedTuple):
    """``ours`` over a transport is to be ``factors[shape]`` times as fast as another engine."""

    transport: str
    engine: str
    other_transport: str
    factors: dict[str, float]
    less_cpu: bool


GOALS = (
    Goal("tcp", "nixl", "tcp", {"mla": 2.5, "gqa": 3.0, "small": 4.0}, less_cpu=True),
    Goal("tcp", "mooncake", "tcp", {"mla": 2.5, "gqa": 3.0, "small": 4.0}, less_cpu=True),
    Goal("shm", "nixl", "auto", {"mla": 1.2, "gqa": 1.4, "small": 8.0}, less_cpu=False),
    # The same source and target memory as ours; memcpy auto, into private memory, is beside it for honesty.
    Goal("mapped", "memcpy", "mapped", {"mla": 0.9, "gqa": 0.9, "small": 0.9}, less_cpu=False),
)
OWN_COST_GOAL_US = 0.2
SUBMIT_GOAL_US = 10.0
IDLE_GOAL_PERCENT = 2.0


class Ours(NamedTuple):
    """What is known of our engine and not of the others."""

    cost: OwnCost
    idle_percent: float


class Ratio(NamedTuple):
    """Ours against another engine at one shape."""

    shape: str
    transport: str
    against: str
    speed: float
    speed_min: float
    speed_max: float
    speed_goal: float | None
    cpu: float  # ours / theirs
    cpu_goal: float | None

    @property
    def reached(self) -> bool | None:
        """Whether the goals are reached; None where there are none."""
        if self.speed_goal is None:
            return None
        return self.speed >= self.speed_goal and (self.cpu_goal is None or self.cpu < self.cpu_goal)


def summarise(
    engine: str, transport: str, shape: Shape, rounds: Sequence[Sequence[Reading]], ours: Ours | None
) -> Record:
    """One record out of the readings of all rounds."""
    own = ours.cost if ours else None
    gigabytes = shape.request_bytes / 1e9
    rates = [statistics.median(gigabytes / reading.full_s for reading in readings) for readings in rounds]
    quiet = [statistics.median(gigabytes / reading.quiet_s for reading in readings) for readings in rounds]
    cpu = [statistics.median(reading.cpu_s / gigabytes for reading in readings) for readings in rounds]
    return Record(
        engine=engine,
        transport=transport,
        shape=shape.name,
        gb_per_s=statistics.median(rates),
        gb_per_s_min=min(rates),
        gb_per_s_max=max(rates),
        gb_per_s_quiet=statistics.median(quiet),
        gb_per_s_rounds=rates,
        cpu_s_per_gb=statistics.median(cpu),
        us_per_page_own=own.us_per_page if own else None,
        us_per_page_stages=own.stages._asdict() if own and own.stages else None,
        us_per_submit={str(pages): list(taken) for pages, taken in own.submit.items()} if own else None,
        us_to_first_write=list(own.wake) if own else None,
        idle_percent=ours.idle_percent if ours else None,
    )


def ratios(records: Sequence[Record]) -> list[Ratio]:
    """Ours against every other engine of the same shape that it can be compared with."""
    return [
        _ratio(ours, other)
        for ours in records
        for other in records
        if ours["engine"] == "ours" != other["engine"]
        and ours["shape"] == other["shape"]
        and _comparable(ours, other)
    ]


def _comparable(ours: Record, other: Record) -> bool:
    """The same transport, what a goal names, or memcpy, which everybody is measured by."""
    pair = (ours["transport"], other["engine"], other["transport"])
    named = {(goal.transport, goal.engine, goal.other_transport) for goal in GOALS}
    return pair in named or ours["transport"] == other["transport"] or pair[1:] == ("memcpy", "auto")


def _ratio(ours: Record, other: Record) -> Ratio:
    pair = (ours["transport"], other["engine"], other["transport"])
    goal = next((g for g in GOALS if (g.transport, g.engine, g.other_transport) == pair), None)
    factor = goal.factors.get(ours["shape"]) if goal else None
    by_round = [
        mine / theirs for mine, theirs in zip(ours["gb_per_s_rounds"], other["gb_per_s_rounds"], strict=True)
    ]
    return Ratio(
        ours["shape"],
        ours["transport"],
        f"{other['engine']} {other['transport']}",
        ours["gb_per_s"] / other["gb_per_s"],
        min(by_round),
        max(by_round),
        factor,
        ours["cpu_s_per_gb"] / other["cpu_s_per_gb"],
        1.0 if goal and goal.less_cpu and factor else None,
    )


def tables(records: Sequence[Record]) -> str:
    """Everything the command prints at its end."""
    speeds = table(
        ("shape", "engine", "transport", "GB/s", "min", "max", "quiet", "CPU s/GB"),
        [_figures(record) for record in records],
    )
    comparisons = table(
        ("shape", "ours over", "against", "times as fast", "in a round", "goal", "CPU", "reached"),
        [_comparison(ratio) for ratio in ratios(records)],
    )
    parts = speeds, comparisons, _own(records)
    return "\n\n".join(part for part in parts if part)


def _figures(record: Record) -> tuple[str, ...]:
    rates = (record[key] for key in ("gb_per_s", "gb_per_s_min", "gb_per_s_max", "gb_per_s_quiet"))
    names = record["shape"], record["engine"], record["transport"]
    return (*names, *(f"{rate:.2f}" for rate in rates), f"{record['cpu_s_per_gb']:.2f}")


def _comparison(ratio: Ratio) -> tuple[str, ...]:
    goal = "" if ratio.speed_goal is None else f">= {ratio.speed_goal}"
    cpu = f"x {ratio.cpu:.2f}" + (f" (< {ratio.cpu_goal:g})" if ratio.cpu_goal else "")
    reached = {None: "", True: "yes", False: "NO"}[ratio.reached]
    within = f"{ratio.speed_min:.2f} - {ratio.speed_max:.2f}"
    return ratio.shape, ratio.transport, ratio.against, f"{ratio.speed:.2f}", within, goal, cpu, reached


def _own(records: Sequence[Record]) -> str:
    """What only ours has: own cost, its parts, and the I/O thread asleep."""
    ours = [record for record in records if record["us_per_submit"] is not None]
    if not ours:
        return ""
    pages = list(ours[0]["us_per_submit"] or {})
    costs = table(
        ("shape", "profile", "us per page", *(f"submit of {count}" for count in pages)),
        [_cost(record) for record in ours],
    )
    stages = table(
        ("shape", "profile", *Stages._fields),
        [
            (record["shape"], record["transport"], *(f"{part:.4f}" for part in parts.values()))
            for record in ours
            if (parts := record["us_per_page_stages"])
        ],
    )
    resting = table(
        ("profile", "idle, % of a core", "first write after us, p50", "p99"),
        list({record["transport"]: _resting(record) for record in ours}.values()),
    )
    texts = (
        f"Own cost. Goals: {OWN_COST_GOAL_US} us per page; {SUBMIT_GOAL_US:g} us per submit of a layer "
        f"(I/O thread asleep / awake).\n{costs}",
        f"Its parts, us per page, of the least disturbed run (null provider).\n{stages}" if stages else "",
        f"The I/O thread at rest. Goal: {IDLE_GOAL_PERCENT:g} % of a core. From submit to the first write it "
        f"has to wake.\n{resting}",
    )
    return "\n\n".join(text for text in texts if text)


def _cost(record: Record) -> tuple[str, ...]:
    taken = (f"{asleep:.1f} / {awake:.1f}" for asleep, awake in (record["us_per_submit"] or {}).values())
    return record["shape"], record["transport"], f"{record['us_per_page_own']:.3f}", *taken


def _resting(record: Record) -> tuple[str, ...]:
    delays = (f"{delay:.1f}" for delay in record["us_to_first_write"] or ())
    return record["transport"], f"{record['idle_percent']:.2f}", *delays


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; nothing without rows."""
    if not rows:
        return ""
    lines = [heads, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    padded = ["  ".join(map(str.ljust, line, widths)) for line in lines]
    padded.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in padded)
