"""The chart: what of each transfer was left after the forward pass, layer by layer and not."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sglang_pd_fabric.tools.bench.overlap.figures import Case

_LABEL, _BARS, _FIGURE = 170, 420, 150  # widths: names, bars, numbers
_ROW, _BAR, _HEAD, _GAP = 22, 14, 34, 18
_PASS, _EXPOSED = "#8b949e", "#d4a72c"
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.head{font-weight:600;font-size:14px}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
)


def draw(cases: Sequence[Case]) -> str:
    """The SVG's text: for each case the forward pass, and behind it what of the transfer it did not hide."""
    panels, top = [], _GAP
    for case in cases:
        panels.append(_panel(case, top))
        top += _HEAD + 2 * _ROW + _GAP
    width = _LABEL + _BARS + _FIGURE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}" '
        f'role="img" aria-label="forward pass and exposed transfer">\n<style>{_STYLE}</style>\n'
        + "".join(panels)
        + "</svg>\n"
    )


def _panel(case: Case, top: int) -> str:
    ways = (
        ("layer by layer", case["exposed_ms"], case["hidden_fraction"]),
        ("at the pass's end", case["exposed_ms_chunkwise"], case["hidden_fraction_chunkwise"]),
    )
    scale = _BARS / (case["pass_ms"] + max(exposed for _, exposed, _ in ways))
    head = escape(f"{case['shape']} over {case['transport']}: a pass of {case['pass_ms']:.1f} ms, then")
    rows = (
        _bar(name, case["pass_ms"] * scale, exposed * scale, f"{exposed:.2f} ms, {hidden:.0%} hidden", place)
        for place, (name, exposed, hidden) in zip((top + _HEAD, top + _HEAD + _ROW), ways, strict=True)
    )
    return f'<text class="head" x="8" y="{top + 16}">{head}</text>\n' + "".join(rows)


def _bar(name: str, length: float, exposed: float, figure: str, top: int) -> str:
    base, end = top + _BAR - 3, _LABEL + length
    return (
        f'<text x="{_LABEL - 8}" y="{base}" text-anchor="end">{escape(name)}</text>'
        f'<rect x="{_LABEL}" y="{top}" width="{length:.1f}" height="{_BAR}" fill="{_PASS}"/>'
        f'<rect x="{end:.1f}" y="{top}" width="{max(exposed, 1):.1f}" height="{_BAR}" fill="{_EXPOSED}"/>'
        f'<text x="{end + max(exposed, 1) + 6:.1f}" y="{base}">{escape(figure)}</text>\n'
    )
