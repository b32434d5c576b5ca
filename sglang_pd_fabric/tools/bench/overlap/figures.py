"""From readings to the figures of the overlap bench: pure functions, and the tables that are printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from sglang_pd_fabric.tools.bench.overlap.readings import Delays, Quantiles, Reading
from sglang_pd_fabric.tools.bench.results import table
from sglang_pd_fabric.tools.bench.workload import Shape

HIDDEN_GOAL = 0.9
DELAY_P50_GOAL_US = 5.0
DELAY_P99_GOAL_US = 15.0


class Case(TypedDict):
    """One shape over one transport: medians over all repetitions, times in milliseconds.

    ``hidden_fraction`` is the share of the bytes that the receiver had counted when the forward pass ended,
    ``exposed_ms`` the time after it until it had counted all.
    """

    transport: str
    shape: str
    repetitions: int
    transfer_ms: float
    pass_ms: float
    hidden_fraction: float
    hidden_fraction_min: float
    hidden_fraction_max: float
    hidden_fraction_chunkwise: float
    exposed_ms: float
    exposed_ms_chunkwise: float


class Results(TypedDict):
    """What ``--json`` writes. The figures on top are the worst of the cases'."""

    hidden_fraction: float
    hidden_fraction_chunkwise: float
    post_delay_us: Quantiles | None
    post_delay_us_sleeping: Quantiles | None
    cases: list[Case]


def case(transport: str, shape: Shape, readings: Sequence[Reading]) -> Case:
    """The figures of one case."""

    def milliseconds(values: Sequence[int]) -> float:
        return statistics.median(values) / 1e6

    hidden = [reading.layerwise.hidden_units / shape.writes for reading in readings]
    chunkwise = [reading.chunkwise.hidden_units / shape.writes for reading in readings]
    return Case(
        transport=transport,
        shape=shape.name,
        repetitions=len(readings),
        transfer_ms=milliseconds([reading.alone_ns for reading in readings]),
        pass_ms=milliseconds([reading.pass_ns for reading in readings]),
        hidden_fraction=statistics.median(hidden),
        hidden_fraction_min=min(hidden),
        hidden_fraction_max=max(hidden),
        hidden_fraction_chunkwise=statistics.median(chunkwise),
        exposed_ms=milliseconds([reading.layerwise.exposed_ns for reading in readings]),
        exposed_ms_chunkwise=milliseconds([reading.chunkwise.exposed_ns for reading in readings]),
    )


def results(cases: Sequence[Case], delays: Delays | None) -> Results:
    """All of it."""
    return Results(
        hidden_fraction=min(each["hidden_fraction"] for each in cases),
        hidden_fraction_chunkwise=max(each["hidden_fraction_chunkwise"] for each in cases),
        post_delay_us=delays.spinning if delays else None,
        post_delay_us_sleeping=delays.sleeping if delays else None,
        cases=list(cases),
    )


def tables(found: Results) -> str:
    """Everything the command prints at its end."""
    heads = (
        *("shape", "transport", "transfer ms", "pass ms", "hidden", "range", "goal", "reached"),
        *("exposed ms", "chunk-wise: hidden", "exposed ms"),
    )
    parts = [table(heads, [_row(each) for each in found["cases"]])]
    rows = [
        _delay_row("spins (as on a GPU)", found["post_delay_us"], with_goal=True),
        _delay_row("sleeps after 50 us", found["post_delay_us_sleeping"], with_goal=False),
    ]
    delays = [row for row in rows if row]
    if delays:
        text = table(("I/O thread", "p50", "p99", "p99.9", "max", "samples", "goal", "reached"), delays)
        parts.append(f"From the progress word to the first post, us.\n{text}")
    return "\n\n".join(parts)


def _row(each: Case) -> tuple[str, ...]:
    within = f"{each['hidden_fraction_min']:.3f} - {each['hidden_fraction_max']:.3f}"
    reached = "yes" if each["hidden_fraction"] >= HIDDEN_GOAL else "NO"
    return (
        each["shape"],
        each["transport"],
        f"{each['transfer_ms']:.2f}",
        f"{each['pass_ms']:.2f}",
        f"{each['hidden_fraction']:.3f}",
        within,
        f">= {HIDDEN_GOAL:g}",
        reached,
        f"{each['exposed_ms']:.2f}",
        f"{each['hidden_fraction_chunkwise']:.3f}",
        f"{each['exposed_ms_chunkwise']:.2f}",
    )


class _Goal(NamedTuple):
    text: str
    reached: str


def _delay_row(name: str, found: Quantiles | None, *, with_goal: bool) -> tuple[str, ...]:
    if found is None:
        return ()
    reached = found["p50"] <= DELAY_P50_GOAL_US and found["p99"] <= DELAY_P99_GOAL_US
    goal = _Goal("", "")
    if with_goal:
        text = f"p50 <= {DELAY_P50_GOAL_US:g}, p99 <= {DELAY_P99_GOAL_US:g}"
        goal = _Goal(text, "yes" if reached else "NO")
    figures = (found["p50"], found["p99"], found["p999"], found["max"])
    return name, *(f"{figure:.1f}" for figure in figures), str(found["samples"]), *goal
