"""The picture of a soak: faults above, requests that ended in each second below, on one time axis, as SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from sglang_pd_fabric.tools.soak.records import Ending, Event, Outcome

_LABEL, _AXIS, _MARGIN = 90, 880, 20  # widths
_TOP, _ROW, _BAR, _HEIGHT, _GAP = 58, 22, 14, 180, 26  # heights
_TICKS = 12
_STEPS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600)
_FAULTS = {"kill": "#e5534b", "freeze": "#1f6feb"}
_ENDINGS = {
    "equal to the reference": ("#76b900", (Ending.EQUAL,)),
    "taken back by the client": ("#8b949e", (Ending.TAKEN_BACK,)),
    "failed with a reason": ("#d4a72c", (Ending.ERROR,)),
    "wrong, empty or hung": ("#bf5af2", (Ending.WRONG, Ending.EMPTY, Ending.HUNG)),
}
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.head{font-weight:600}.small{font-size:11px}"
    ".grid{stroke:#8b949e;stroke-opacity:.35}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
)


def draw(
    events: Sequence[Event], outcomes: Sequence[Outcome], servers: Sequence[str], seconds: float, title: str
) -> str:
    """The SVG's text; `seconds` is the length of the time axis."""
    bin_s = max(1, round(seconds / 300))
    scale = _AXIS / seconds
    base = _TOP + _ROW * len(servers) + _GAP + _HEIGHT
    parts = [_grid(seconds, scale, base)]
    for number, server in enumerate(servers):
        parts.append(
            _row(server, [e for e in events if e.target == server], seconds, scale, _TOP + _ROW * number)
        )
    parts.append(_bars(outcomes, bin_s, scale, base))
    width, height = _LABEL + _AXIS + _MARGIN, base + 30
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n<style>{_STYLE}</style>\n'
        f'<text class="head" x="8" y="20">{escape(title)}</text>\n{_legend()}{"".join(parts)}</svg>\n'
    )


def _legend() -> str:
    entries = [("killed, until it serves again", _FAULTS["kill"]), ("frozen", _FAULTS["freeze"])]
    entries += [(text, colour) for text, (colour, _) in _ENDINGS.items()]
    parts, x = [], 8
    for text, colour in entries:
        parts.append(
            f'<rect x="{x}" y="32" width="10" height="10" fill="{colour}"/>'
            f'<text class="small" x="{x + 14}" y="41">{text}</text>\n'
        )
        x += 30 + 6 * len(text)
    return "".join(parts)


def _row(server: str, events: Sequence[Event], seconds: float, scale: float, top: float) -> str:
    lines = [
        f'<text class="small" x="{_LABEL - 8}" y="{top + 11}" text-anchor="end">{escape(server)}</text>\n'
    ]
    for event in events:
        until = seconds if event.until_s is None else min(event.until_s, seconds)
        lines.append(
            f'<rect x="{_LABEL + event.at_s * scale:.1f}" y="{top}" '
            f'width="{max((until - event.at_s) * scale, 1.5):.1f}" height="{_BAR}" '
            f'fill="{_FAULTS[event.fault]}"><title>{escape(str(event))}</title></rect>\n'
        )
    return "".join(lines)


def _bars(outcomes: Sequence[Outcome], bin_s: int, scale: float, base: float) -> str:
    """Stacked: what ended in each stretch of time, per second."""
    place = {ending: (row, colour) for row, (colour, ends) in enumerate(_ENDINGS.values()) for ending in ends}
    bins: Counter[tuple[int, int, str]] = Counter()
    for outcome in outcomes:
        row, colour = place[outcome.ending]
        bins[int(outcome.ended_s // bin_s), row, colour] += 1
    sums: Counter[int] = Counter()
    for (at, _, _), count in bins.items():
        sums[at] += count
    most = max(sums.values(), default=1)
    lines, heights = [], Counter[int]()
    for (at, _, colour), count in sorted(bins.items()):
        height = count / most * _HEIGHT
        y = base - (heights[at] / most * _HEIGHT) - height
        heights[at] += count
        lines.append(
            f'<rect x="{_LABEL + at * bin_s * scale:.1f}" y="{y:.1f}" '
            f'width="{max(bin_s * scale - 0.3, 0.5):.1f}" height="{height:.1f}" fill="{colour}"/>\n'
        )
    top = base - _HEIGHT
    lines.append(
        f'<text class="small" x="{_LABEL - 8}" y="{top + 8}" text-anchor="end">{most / bin_s:.1f}/s</text>'
        f'<text class="small" x="{_LABEL - 8}" y="{base}" text-anchor="end">requests</text>\n'
    )
    return "".join(lines)


def _grid(seconds: float, scale: float, base: float) -> str:
    step = next((each for each in _STEPS if seconds / each <= _TICKS), 7200)
    lines = []
    for tick in range(int(seconds / step) + 1):
        x = _LABEL + tick * step * scale
        name = f"{tick * step} s" if step < 60 else f"{tick * step / 60:g} min"
        lines.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{base}"/>'
            f'<text class="small" x="{x:.1f}" y="{base + 16}" text-anchor="middle">{name}</text>\n'
        )
    return "".join(lines)
