"""Reads servers' logs for tracebacks, all of which need a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# What a traceback says in one of its lines, and why that is no fault of ours.
STATED: dict[str, str] = {}
_BEGIN = "Traceback (most recent call last):"
_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d ")


def tracebacks(text: str) -> Iterator[str]:
    """The tracebacks of a log, each with the line before it and the exception behind it.

    Chained ones ("During handling of ...") are one.
    """
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        if _BEGIN not in lines[at]:
            at += 1
            continue
        begin, end = max(0, at - 1), at + 1
        while end < len(lines) and not _STAMP.match(lines[end]):
            end += 1
        yield "\n".join(lines[begin:end]).rstrip()
        at = end


def stated_reason(traceback: str) -> str | None:
    """Why a traceback may be there; None: it may not."""
    return next((reason for pattern, reason in STATED.items() if re.search(pattern, traceback)), None)


def unstated(log: Path) -> list[str]:
    """The tracebacks of a log that have no reason."""
    return [each for each in tracebacks(log.read_text(errors="replace")) if stated_reason(each) is None]
