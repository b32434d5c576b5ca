"""Two pictures as SVG: goodput over load, and which pass each server ran when."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sglang_pd_fabric.tools.plan.curves import Curve
from sglang_pd_fabric.tools.plan.outcome import Targets
from sglang_pd_fabric.tools.plan.simulate.engine import Pass
from sglang_pd_fabric.tools.plan.simulate.run import Arrangement, Played

_LABEL, _AXIS, _MARGIN = 110, 760, 30  # widths
_HEIGHT, _TOP, _BOTTOM = 300, 60, 56  # of the curves
_ROW, _BAR, _GAP = 24, 16, 18  # of the passes
_WINDOW_S = 4.0
_TICKS = 8
_COLOURS = {
    Arrangement.DISAGGREGATED: "#1f6feb",
    Arrangement.CHUNKED: "#d4a72c",
    Arrangement.COLOCATED: "#76b900",
}
_PREFILL, _DECODE, _MIXED = "#1f6feb", "#76b900", "#d4a72c"
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.head{font-weight:600}.small{font-size:11px}"
    ".grid{stroke:#8b949e;stroke-opacity:.35}.curve{fill:none;stroke-width:2.2}"
    ".all{stroke:#8b949e;stroke-dasharray:4 3}@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
)


def draw_curves(curves: Sequence[Curve], targets: Targets, title: str) -> str:
    """The SVG's text. The dashed line: every request in time."""
    most = max(curve.offered[-1] for curve in curves)
    across, up = _AXIS / most, _HEIGHT / most
    floor = _TOP + _HEIGHT
    parts = [f'<line class="all" x1="{_LABEL}" y1="{floor}" x2="{_LABEL + _AXIS}" y2="{_TOP}"/>\n']
    step = _round(most / _TICKS)
    for tick in range(int(most / step) + 1):
        x, y = _LABEL + tick * step * across, floor - tick * step * up
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{floor}"/>'
            f'<line class="grid" x1="{_LABEL}" x2="{_LABEL + _AXIS}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="small" x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{tick * step:g}</text>'
            f'<text class="small" x="{_LABEL - 8}" y="{y + 4:.1f}" text-anchor="end">{tick * step:g}</text>\n'
        )
    for place, curve in enumerate(curves):
        points = " ".join(
            f"{_LABEL + load * across:.1f},{floor - good * up:.1f}"
            for load, good in zip(curve.offered, curve.goodput, strict=True)
        )
        colour = _COLOURS[curve.arrangement]
        parts.append(
            f'<polyline class="curve" stroke="{colour}" points="{points}"/>'
            f'<rect x="{_LABEL + 14}" y="{_TOP + 14 + 20 * place}" width="14" height="10" fill="{colour}"/>'
            f'<text x="{_LABEL + 34}" y="{_TOP + 23 + 20 * place}">{curve.arrangement}</text>\n'
        )
    wanted = f"in time: TTFT {1e3 * targets.ttft_s:g} ms, TPOT {1e3 * targets.tpot_s:g} ms"
    parts.append(
        f'<text class="small" x="{_LABEL}" y="{floor + 36}">requests a second that come</text>'
        f'<text class="small" x="8" y="44">requests a second {wanted}</text>\n'
    )
    return _svg(title, floor + _BOTTOM, parts)


def draw_passes(played: Sequence[Played], title: str) -> str:
    """The SVG's text: a panel for each arrangement, a row for each server, one window of the trace."""
    arrivals = [job.request.arrival_s for job in played[0].jobs]
    begin = arrivals[min(20, len(arrivals) // 4)]
    parts, top = [_legend()], _TOP
    for each in played:
        parts.append(f'<text class="head" x="8" y="{top}">{each.arrangement}</text>\n')
        top += 8
        for engine in each.engines:
            parts.append(f'<text class="small" x="8" y="{top + 12}">{escape(engine.name)}</text>\n')
            parts += [_bar(run, begin, top) for run in _runs(engine.passes) if _inside(run, begin)]
            top += _ROW
        top += _GAP
    for tick in range(_TICKS + 1):
        x = _LABEL + _AXIS * tick / _TICKS
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{top - _GAP}"/>'
            f'<text class="small" x="{x:.1f}" y="{top}" text-anchor="middle">'
            f"{_WINDOW_S * tick / _TICKS:g} s</text>\n"
        )
    return _svg(title, top + 16, parts)


def _runs(passes: Sequence[Pass]) -> list[Pass]:
    """Decode passes that follow each other without a gap are one bar."""
    runs: list[Pass] = []
    for each in passes:
        last = runs[-1] if runs else None
        if last and not last.prefill and not each.prefill and each.begin_s - last.end_s < 1e-9:
            runs[-1] = last._replace(end_s=each.end_s)
        else:
            runs.append(each)
    return runs


def _inside(each: Pass, begin: float) -> bool:
    return each.end_s > begin and each.begin_s < begin + _WINDOW_S


def _bar(each: Pass, begin: float, top: float) -> str:
    left = max(0.0, each.begin_s - begin) * _AXIS / _WINDOW_S
    right = min(_WINDOW_S, each.end_s - begin) * _AXIS / _WINDOW_S
    colour = _DECODE if not each.prefill else _MIXED if each.decode else _PREFILL
    what = f"{each.prefill} tokens of prompts, " if each.prefill else ""
    took = f"{1e3 * (each.end_s - each.begin_s):.1f} ms"
    return (
        f'<rect x="{_LABEL + left:.1f}" y="{top}" width="{max(right - left, 0.5):.1f}" height="{_BAR}" '
        f'fill="{colour}"><title>{what}{each.decode} in decode, {took}</title></rect>\n'
    )


def _legend() -> str:
    kinds = ((_PREFILL, "prefill"), (_DECODE, "decode"), (_MIXED, "both in one pass"))
    return "".join(
        f'<rect x="{_LABEL + 130 * place}" y="32" width="14" height="10" fill="{colour}"/>'
        f'<text class="small" x="{_LABEL + 20 + 130 * place}" y="41">{name}</text>\n'
        for place, (colour, name) in enumerate(kinds)
    )


def _round(least: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 1.0
    while power * 10 <= least:
        power *= 10
    while power > least:
        power /= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    width = _LABEL + _AXIS + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n<style>{_STYLE}</style>\n'
        f'<text class="head" x="8" y="20">{escape(title)}</text>\n{"".join(parts)}</svg>\n'
    )
