"""The chart: GB/s of every engine, a panel for each shape, as an SVG made by hand (no plotting library)."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sglang_pd_fabric.tools.bench.results import Record

_LABEL, _BARS, _FIGURE = 130, 420, 90  # widths: names, bars, numbers
_ROW, _BAR, _HEAD, _GAP = 22, 14, 34, 18
_COLOURS = {
    "ours": "#1f6feb",
    "raw": "#8b949e",
    "raw4": "#b1bac4",
    "memcpy": "#57606a",
    "nixl": "#76b900",
    "mooncake": "#d4a72c",
}
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.head{font-weight:600;font-size:14px}"
    ".ours{font-weight:600}.range{stroke:#24292f;stroke-width:1.2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.range{stroke:#e6edf3}}"
)


def draw(records: Sequence[Record]) -> str:
    """The SVG's text. Each panel has its own scale; a line on a bar spans the slowest and fastest round."""
    shapes = list(dict.fromkeys(record["shape"] for record in records))
    panels, top = [], _GAP
    for shape in shapes:
        rows = sorted((r for r in records if r["shape"] == shape), key=lambda r: -r["gb_per_s"])
        panels.append(_panel(shape, rows, top))
        top += _HEAD + _ROW * len(rows) + _GAP
    width = _LABEL + _BARS + _FIGURE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" '
        f'height="{top}" role="img" aria-label="GB/s by shape and engine">\n<style>{_STYLE}</style>\n'
        + "".join(panels)
        + "</svg>\n"
    )


def _panel(shape: str, rows: Sequence[Record], top: int) -> str:
    most = max(row["gb_per_s_max"] for row in rows) or 1.0
    bars = (_bar(row, _BARS / most, top + _HEAD + _ROW * number) for number, row in enumerate(rows))
    return f'<text class="head" x="8" y="{top + 16}">{escape(shape)}, GB/s</text>\n' + "".join(bars)


def _bar(row: Record, scale: float, top: int) -> str:
    name = escape(f"{row['engine']} {row['transport']}")
    kind = ' class="ours"' if row["engine"] == "ours" else ""
    length, low, high = (scale * row[key] for key in ("gb_per_s", "gb_per_s_min", "gb_per_s_max"))
    middle, base = top + _BAR / 2, top + _BAR - 3
    return (
        f'<text{kind} x="{_LABEL - 8}" y="{base}" text-anchor="end">{name}</text>'
        f'<rect x="{_LABEL}" y="{top}" width="{max(length, 1):.1f}" height="{_BAR}" '
        f'fill="{_COLOURS[row["engine"]]}"/>'
        f'<line class="range" x1="{_LABEL + low:.1f}" x2="{_LABEL + high:.1f}" y1="{middle}" y2="{middle}"/>'
        f'<text{kind} x="{_LABEL + max(length, high) + 6:.1f}" y="{base}">{row["gb_per_s"]:.2f}</text>\n'
    )
