"""Reads servers' logs for tracebacks, all of which need a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

# What a traceback says in one of its lines, and why that is no fault of ours.
STATED = {
    r"sglang_router/mini_lb\.py(.|\n)*\naiohttp\.client_exceptions\.": (
        "SGLang's small load balancer answers 500, or breaks its stream, when a server's connection breaks"
    ),
}
_BEGIN = "Traceback (most recent call last):"
_NEXT = re.compile(r"^(\[\d{4}-\d\d-\d\d |INFO:|WARNING:|ERROR:)")


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
        while end < len(lines) and not _NEXT.match(lines[end]):
            end += 1
        yield "\n".join(lines[begin:end]).rstrip()
        at = end


def stated_reason(traceback: str) -> str | None:
    """Why a traceback may be there; None: it may not."""
    return next((reason for pattern, reason in STATED.items() if re.search(pattern, traceback)), None)
