"""What a soak found: the record that goes to a file, and the tables at the end."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from sglang_pd_fabric.tools.soak.judge import counts, detection, undisturbed
from sglang_pd_fabric.tools.soak.records import Ending, Event, Outcome, Rounding, Violation
from sglang_pd_fabric.tools.soak.resources import Holdings

LAST_EVENTS_S = 60.0


@dataclass
class Findings:
    """All that was seen.

    Attributes:
        seconds: how long there was traffic.
        base, end: what idle servers held after their warm-up and at the end, by name.
        growth: MB a minute, of servers that lived long enough.
        stated: tracebacks with a reason, by that reason.
        roundings: answers that transformers gives too, though the reference gave another.
        skipped: faults that were left out because their server was away already.
    """

    seed: int
    seconds: float = 0.0
    events: list[Event] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    base: dict[str, Holdings] = field(default_factory=dict)
    end: dict[str, Holdings] = field(default_factory=dict)
    growth: dict[str, float] = field(default_factory=dict)
    stated: Counter[str] = field(default_factory=Counter)
    roundings: list[Rounding] = field(default_factory=list)
    skipped: int = 0

    def faults(self, fault: str) -> int:
        """How many there were of a kind."""
        return sum(event.fault == fault for event in self.events)


def same_reason(text: str) -> str:
    """A reason without what differs from request to request, so that it can be counted."""
    text = re.sub(r"\d+\.\d+\.\d+\.\d+(:\d+)?", "ADDRESS", text.splitlines()[0] if text else "")
    return re.sub(r"\d+", "N", text)[:200]


def reasons(outcomes: Sequence[Outcome], ending: Ending) -> Counter[str]:
    """How often each reason was given."""
    found = (outcome.reason for outcome in outcomes if outcome.ending is ending)
    return Counter(same_reason(reason) for reason in found if reason)


def as_record(findings: Findings, options: Mapping[str, Any]) -> dict[str, Any]:
    """All figures, ready for JSON."""
    return {
        "options": dict(options),
        "seed": findings.seed,
        "seconds": round(findings.seconds, 1),
        "requests": dict(counts(findings.outcomes)),
        "undisturbed": dict(counts(quiet_requests(findings))),
        "ties": sum(reasons(findings.outcomes, Ending.EQUAL).values()),
        "rounding": [row._asdict() for row in rounded(findings.roundings)],
        "errors": dict(reasons(findings.outcomes, Ending.ERROR).most_common()),
        "taken_back": dict(reasons(findings.outcomes, Ending.TAKEN_BACK).most_common()),
        "kills": findings.faults("kill"),
        "freezes": findings.faults("freeze"),
        "skipped": findings.skipped,
        "noticed": [row._asdict() for row in noticed(findings)],
        "events": [_event(event, findings.outcomes) for event in findings.events],
        "baseline": {name: asdict(held) for name, held in findings.base.items()},
        "end": {name: asdict(held) for name, held in findings.end.items()},
        "mb_per_minute": findings.growth,
        "stated_tracebacks": dict(findings.stated),
        "violations": [asdict(violation) for violation in findings.violations],
    }


def _event(event: Event, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    equal, errors = detection(event, outcomes)
    return {
        **asdict(event),
        "under_way_equal": equal,
        "under_way_errors_s": [round(each, 2) for each in errors],
    }


def history(findings: Findings, at_s: float) -> list[str]:
    """What had happened in the last minute before some time."""
    return [str(e) for e in findings.events if at_s - LAST_EVENTS_S <= e.at_s <= at_s]


def print_findings(findings: Findings) -> None:
    """Print the tables: how requests ended, why, and how soon faults were noticed."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=150)
    summary = Table(title=f"soak, seed {findings.seed}, {findings.seconds:.0f} s of traffic")
    summary.add_column("requests")
    summary.add_column("", justify="right")
    for ending in Ending:
        summary.add_row(ending.value, str(counts(findings.outcomes)[ending.value]))
    summary.add_row("no fault was near: all, and the equal", far_from_faults(findings))
    summary.add_row("of the equal: until a tie", str(sum(reasons(findings.outcomes, Ending.EQUAL).values())))
    summary.add_row("rounding: as transformers gives too", str(len(findings.roundings)))
    for fault in ("kill", "freeze"):
        summary.add_row(f"{fault}s", str(findings.faults(fault)))
    console.print(summary)

    why = Table(title="stated errors")
    why.add_column("times", justify="right")
    why.add_column("reason")
    for reason, count in reasons(findings.outcomes, Ending.ERROR).most_common(20):
        why.add_row(str(count), reason.replace("[", r"\["))
    console.print(why)
    if findings.roundings:
        console.print(_rounding_table(findings))
    console.print(_detection_table(findings))
    console.print(_holdings_table(findings))


def quiet_requests(findings: Findings) -> list[Outcome]:
    """Those whose errors no fault would have excused."""
    return [each for each in findings.outcomes if undisturbed(each, findings.events)]


def far_from_faults(findings: Findings) -> str:
    """How many those were, and how many of them had the right answer."""
    quiet = quiet_requests(findings)
    return f"{len(quiet)}, {counts(quiet)[Ending.EQUAL.value]}"


class Rounded(NamedTuple):
    """The answers to one question that differ by rounding, and their largest differences."""

    question: int
    answers: int
    from_reference: float
    from_transformers: float
    reason: str


def rounded(roundings: Sequence[Rounding]) -> list[Rounded]:
    """A row for each question, with the reason of the answer that is furthest from the reference."""
    rows = []
    for question in sorted({each.question for each in roundings}):
        each = [one for one in roundings if one.question == question]
        most = max(each, key=lambda one: one.from_reference)
        nearest = max(one.from_transformers for one in each)
        rows.append(
            Rounded(question, len(each), round(most.from_reference, 6), round(nearest, 6), most.reason)
        )
    return rows


class Noticed(NamedTuple):
    """How soon the requests that were under way learned of one kind of fault, in seconds."""

    fault: str
    times: int
    answered: int
    failed: int
    least_s: float | None
    median_s: float | None
    most_s: float | None


def noticed(findings: Findings) -> list[Noticed]:
    """A row for each kind of fault and side."""
    rows = []
    for fault, role in sorted({(event.fault, event.target.partition("-")[0]) for event in findings.events}):
        events = [e for e in findings.events if e.fault == fault and e.target.startswith(role)]
        seen = [detection(event, findings.outcomes) for event in events]
        errors = [round(seconds, 2) for _, each in seen for seconds in each]
        spread = (min(errors), statistics.median(errors), max(errors)) if errors else (None, None, None)
        answered = sum(equal for equal, _ in seen)
        rows.append(Noticed(f"{fault} {role}", len(events), answered, len(errors), *spread))
    return rows


def _rounding_table(findings: Findings) -> Any:
    from rich.table import Table

    table = Table(title="rounding: answers that differ from the reference, and that transformers gives too")
    for name in ("question", "answers", "from the reference", "from transformers", "how"):
        table.add_column(name, justify="left" if name == "how" else "right")
    for row in rounded(findings.roundings):
        table.add_row(*(str(cell) for cell in row[:-1]), row.reason.replace("[", r"\["))
    return table


def _detection_table(findings: Findings) -> Any:
    from rich.table import Table

    table = Table(title="requests under way when a server was killed or froze: seconds to their error")
    for name in ("fault", "times", "answered", "failed", "least", "median", "most"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for row in noticed(findings):
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    return table


def _holdings_table(findings: Findings) -> Any:
    from rich.table import Table

    table = Table(title="idle servers: after the warm-up, and at the end")
    for name in ("server", "descriptors", "threads", "MB", "/dev/shm", "MB a minute"):
        table.add_column(name, justify="left" if name == "server" else "right")
    for name, end in findings.end.items():
        base = findings.base.get(name, Holdings())
        grown = findings.growth.get(name)
        table.add_row(
            name,
            f"{base.fds} / {end.fds}",
            f"{base.threads} / {end.threads}",
            f"{base.rss_mb:.0f} / {end.rss_mb:.0f}",
            f"{base.shm} / {end.shm}",
            "" if grown is None else f"{grown:+.1f}",
        )
    return table
