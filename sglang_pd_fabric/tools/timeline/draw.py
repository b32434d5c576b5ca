"""The picture of a request: its forward passes above, its writes below, on one time axis, as SVG."""

from __future__ import annotations

from html import escape

from sglang_pd_fabric.tools.timeline.events import Pass, Timeline, Write

_LABEL, _AXIS, _MARGIN = 110, 860, 20  # widths
_TOP, _PASS, _ROW, _BAR, _GAP = 46, 38, 16, 11, 22  # heights
_LEAST = 3  # so that a short write can be seen
_TICKS = 12
_COLOURS = ("#1f6feb", "#76b900", "#d4a72c", "#bf5af2", "#e5534b")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.head{font-weight:600}.small{font-size:11px}"
    ".on{fill:#fff}.grid{stroke:#8b949e;stroke-opacity:.35}.mark{stroke:#24292f;stroke-dasharray:4 3}"
    ".layer{stroke:#fff;stroke-opacity:.9}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.mark{stroke:#e6edf3}}"
)


class _Scale:
    """Where a time lies, in pixels."""

    def __init__(self, timeline: Timeline) -> None:
        self.start = min(each.begin_ns for each in timeline.passes)
        last = max([timeline.complete_ns, *(write.done_ns for write in timeline.writes)])
        self.ms = (last - self.start) / 1e6
        self._pixels = _AXIS / (last - self.start)

    def at(self, ns: int) -> float:
        return _LABEL + (ns - self.start) * self._pixels


def draw(timeline: Timeline, title: str) -> str:
    """The SVG's text."""
    scale = _Scale(timeline)
    layers = max(len(each.layers) for each in timeline.passes)
    layers = max([layers, *(write.layer for write in timeline.writes)])
    nics = sorted({write.nic for write in timeline.writes})
    order = {each.number: place for place, each in enumerate(timeline.passes, 1)}
    parts = [f'<text class="head" x="8" y="{_TOP + _PASS / 2 + 4}">compute</text>\n']
    parts += [_pass(each, order[each.number], scale) for each in timeline.passes]
    top: float = _TOP + _PASS + _GAP
    for nic in nics:
        parts.append(_nic(nic, layers, [w for w in timeline.writes if w.nic == nic], order, scale, top))
        top += (layers + 2) * _ROW + _GAP
    bottom = top - _GAP + 6
    body = _grid(scale, bottom) + "".join(parts) + _marks(timeline, scale, bottom)
    width, height = _LABEL + _AXIS + _MARGIN, bottom + 56
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n<style>{_STYLE}</style>\n'
        f'<text class="head" x="8" y="20">{escape(title)}</text>\n{body}</svg>\n'
    )


def _pass(each: Pass, place: int, scale: _Scale) -> str:
    left, right = scale.at(each.begin_ns), scale.at(each.end_ns)
    ticks = "".join(
        f'<line class="layer" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP + 20}" y2="{_TOP + _PASS}"/>'
        for x in map(scale.at, each.layers)
    )
    return (
        f'<rect x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" height="{_PASS}" '
        f'fill="{_colour(place)}"><title>forward pass {each.number} of the rank</title></rect>{ticks}'
        f'<text class="small on" x="{(left + right) / 2:.1f}" y="{_TOP + 14}" text-anchor="middle">'
        f"pass {place}</text>\n"
    )


def _nic(nic: int, layers: int, writes: list[Write], order: dict[int, int], scale: _Scale, top: float) -> str:
    lines = [f'<text class="head" x="8" y="{top + 4}">NIC {nic}, writes</text>\n']
    for row in range(layers + 1):
        name = f"layer {row + 1}" if row < layers else "metadata"
        base = top + (row + 1) * _ROW + 4
        lines.append(f'<text class="small" x="{_LABEL - 8}" y="{base}" text-anchor="end">{name}</text>\n')
    for write in writes:
        y = top + (write.layer or layers + 1) * _ROW - _BAR / 2
        left, right = scale.at(write.post_ns), scale.at(write.done_ns)
        took = (write.done_ns - write.post_ns) / 1e6
        lines.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{max(right - left, _LEAST):.1f}" height="{_BAR}" '
            f'fill="{_colour(order.get(write.forward, 0))}" fill-opacity=".75">'
            f"<title>{write.nbytes} bytes in {took:.2f} ms</title></rect>\n"
        )
    return "".join(lines)


def _colour(place: int) -> str:
    """A pass and its writes have one colour; what belongs to none is grey."""
    return _COLOURS[(place - 1) % len(_COLOURS)] if place else "#57606a"


def _grid(scale: _Scale, bottom: float) -> str:
    """The time axis, in milliseconds from the beginning of the first pass."""
    step = next(
        size * 10**power
        for power in range(-3, 9)
        for size in (1, 2, 5)
        if scale.ms / (size * 10**power) <= _TICKS
    )
    lines = []
    for tick in range(int(scale.ms / step) + 1):
        x = scale.at(round(scale.start + tick * step * 1e6))
        lines.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{bottom}"/>'
            f'<text class="small" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick * step:g}</text>\n'
        )
    return "".join(lines) + f'<text class="small" x="8" y="{bottom + 14}">ms</text>\n'


def _marks(timeline: Timeline, scale: _Scale, bottom: float) -> str:
    ended = timeline.passes[-1].end_ns
    after = (timeline.complete_ns - ended) / 1e6
    marks = (
        (ended, "last pass ended", 32),
        (timeline.complete_ns, f"decode may go on, {after:.2f} ms later", 48),
    )
    return "".join(
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{bottom + below - 10}"/>'
        f'<text class="small" x="{x - 4:.1f}" y="{bottom + below}" text-anchor="end">{text}</text>\n'
        for ns, text, below in marks
        for x in (scale.at(ns),)
    )
