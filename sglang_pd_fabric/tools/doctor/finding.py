"""What a check finds, and how it is shown."""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple


class Level(IntEnum):
    """How bad it is. One FAIL makes the exit status of the command 1."""

    OK = 0
    WARN = 1
    FAIL = 2


class Finding(NamedTuple):
    """One line of the screen.

    Attributes:
        area: ``libfabric``, ``NICs``, ...; lines of one area stand together.
        level: OK, WARN or FAIL.
        text: what is so.
        todo: what to do about it; empty where nothing has to be done.
    """

    area: str
    level: Level
    text: str
    todo: str = ""


def to_text(findings: Sequence[Finding]) -> str:
    """One screen: a line for each finding, its remedy below it, a verdict at the end."""
    lines = []
    for area, group in groupby(findings, key=lambda finding: finding.area):
        for index, finding in enumerate(group):
            name = "" if index else area
            lines.append(f"{name:10s} {finding.level.name.lower():4s}  {finding.text}")
            if finding.todo:
                lines.append(f"{'':10s}       -> {finding.todo}")
    return "\n".join([*lines, "", verdict(findings)])


def to_data(findings: Sequence[Finding]) -> dict[str, object]:
    """The same as JSON data."""
    rows = [finding._asdict() | {"level": finding.level.name.lower()} for finding in findings]
    return {"verdict": verdict(findings), "level": worst(findings).name.lower(), "findings": rows}


def worst(findings: Iterable[Finding]) -> Level:
    return max((finding.level for finding in findings), default=Level.OK)


def verdict(findings: Sequence[Finding]) -> str:
    """The last line."""
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    if counts[Level.FAIL]:
        return f"{counts[Level.FAIL]} to be fixed before a server starts, {counts[Level.WARN]} to look at"
    if counts[Level.WARN]:
        return f"a server can start; {counts[Level.WARN]} to look at"
    return "all is well"
