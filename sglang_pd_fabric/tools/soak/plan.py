"""Draws a soak from its seed: who asks what, and what happens to which server when."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from sglang_pd_fabric.tools.soak.questions import LONGEST_ANSWER
from sglang_pd_fabric.tools.soak.records import ROUTER, Ask, Injection, Retreat

ROUTED = 0.2  # share of requests that go through the router, which has its own way with failures
TAKEN_BACK = 0.25
_RETREATS: tuple[Retreat, ...] = ("hang up", "abort on prefill", "abort on decode")
KILL_GAP_S, FREEZE_GAP_S = 50.0, 18.0  # means
LONGEST_FREEZE_S = 15.0
AWAY_S = 8.0  # the longest that a killed server stays away before it is started again
_AGAIN = 0.15  # share of killed servers that are killed once more while they start
_QUIET_START_S, _QUIET_END_S = 4.0, 15.0


def asks(seed: int, questions: int, decodes: Sequence[str]) -> Iterator[Ask]:
    """Requests without end."""
    source = random.Random(f"asks {seed}")
    number = 0
    while True:
        door = ROUTER if source.random() < ROUTED else source.choice(decodes)
        retreat: Retreat | None = source.choice(_RETREATS) if source.random() < TAKEN_BACK else None
        if door == ROUTER and retreat is not None:
            retreat = "hang up"
        yield Ask(
            number,
            source.randrange(questions),
            source.choice((1, 2, 3, source.randint(4, 24), source.randint(24, LONGEST_ANSWER))),
            stream=source.random() < 0.5,
            door=door,
            retreat=retreat,
            # From before it is queued to long after its first token.
            after_s=10 ** source.uniform(-2.3, 0.5),
        )
        number += 1


def injections(
    seed: int, seconds: float, servers: Sequence[str], kill_gap_s: float, freeze_gap_s: float
) -> list[Injection]:
    """The faults of so many seconds, in the order of time."""
    source = random.Random(f"injections {seed}")
    found = []
    last = seconds - _QUIET_END_S
    at = _QUIET_START_S + source.expovariate(1 / kill_gap_s)
    while at < last:
        again = source.uniform(1, 5) if source.random() < _AGAIN else None
        found.append(Injection(at, "kill", source.choice(servers), source.uniform(0, AWAY_S), again))
        at += source.expovariate(1 / kill_gap_s)
    at = _QUIET_START_S + source.expovariate(1 / freeze_gap_s)
    while at < last:
        # Most are short; one in four outlasts our stall deadline of 10 s.
        longest = LONGEST_FREEZE_S if source.random() < 0.5 else 5.0
        found.append(Injection(at, "freeze", source.choice(servers), source.uniform(0.2, longest)))
        at += source.expovariate(1 / freeze_gap_s)
    return sorted(found, key=lambda each: each.at_s)


def short_plan(prefill: str, decodes: Sequence[str]) -> list[Injection]:
    """A minute in which everything happens once."""
    first, last = decodes[0], decodes[-1]
    return [
        Injection(3.0, "freeze", prefill, 2.0),
        Injection(8.0, "freeze", first, 3.0),
        Injection(14.0, "kill", last, 1.0),
        Injection(30.0, "freeze", first, 0.5),
        Injection(40.0, "kill", prefill, 0.0),
    ]
