"""The picture of an assignment: GPUs, the NICs that each uses and why, by NUMA node, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from sglang_pd_fabric.fabric.topology.assign import Assignment, NicUse, Placement
from sglang_pd_fabric.fabric.topology.model import Nic
from sglang_pd_fabric.fabric.topology.render import cores_text, summary

_GPU, _NIC, _WIRE, _EDGE = 250, 250, 110, 16  # widths
_LETTER, _REASON = 6.2, 180  # of a reason: width of a letter, least width
_ROW, _BOX, _GAP, _HEAD = 24, 18, 14, 26  # heights
_LEAST_ROWS = 2  # of a GPU: its name and its cores
_LEFT, _RIGHT = 2 * _EDGE + _GPU, 2 * _EDGE + _GPU + _WIRE  # where a wire begins and ends
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.head{font-weight:600}.small{font-size:11px}"
    ".node{fill:#8b949e;fill-opacity:.12}.gpu{fill:#76b900;fill-opacity:.35}.nic{fill:#1f6feb;fill-opacity:.25}"
    ".wire{stroke:#1f6feb;stroke-width:1.4;fill:none}@media(prefers-color-scheme:dark){text{fill:#e6edf3}}"
)


class _Row(NamedTuple):
    """A placement and where it lies: its first row's top, and the NICs that are drawn beside it."""

    number: int
    placement: Placement
    top: float
    own: list[NicUse]

    @property
    def rows(self) -> int:
        """Its height in rows."""
        return max(_LEAST_ROWS, len(self.own))


def draw(assignment: Assignment) -> str:
    """The SVG's text. A NIC that several GPUs share stands beside the first of them, with a wire to each."""
    width = _width(assignment)
    parts: list[str] = []
    places: dict[Nic, float] = {}
    top: float = _HEAD + _EDGE
    numbered = list(enumerate(assignment.placements))
    for node, group in groupby(numbered, key=lambda each: _node(each[1])):
        begin = top
        top += _HEAD
        rows = []
        for number, placement in group:
            own = [use for use in placement.nics if use.nic not in places]
            row = _Row(number, placement, top, own)
            places |= {use.nic: top + _ROW * place for place, use in enumerate(own)}
            rows.append(row)
            top += _ROW * row.rows + _GAP
        height = top - begin
        parts.append(
            f'<rect class="node" x="{_EDGE}" y="{begin:g}" width="{width - 2 * _EDGE}" '
            f'height="{height:g}" rx="6"/>'
            f'<text class="head" x="{2 * _EDGE}" y="{begin + 18:g}">{node}</text>\n'
        )
        parts += [_placement(row, places) for row in rows]
        top += _GAP
    parts += _notes([f"note: {note}" for note in assignment.notes], top)
    top += 18 * len(assignment.notes)
    left_out = [f"not used: {entry.nic.name}, {entry.reason}" for entry in assignment.left_out]
    parts += _notes(left_out, top)
    top += 18 * len(left_out)
    title = escape(summary(assignment))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + _EDGE:g}" width="{width}" '
        f'height="{top + _EDGE:g}" role="img" aria-label="{title}">\n<style>{_STYLE}</style>\n'
        f'<text class="head" x="{_EDGE}" y="20">{title}</text>\n{"".join(parts)}</svg>\n'
    )


def _width(assignment: Assignment) -> int:
    """As wide as the longest reason needs."""
    reasons = [len(use.reason) for placement in assignment.placements for use in placement.nics]
    return _RIGHT + _NIC + max(_REASON, round(_LETTER * max(reasons, default=0))) + 2 * _EDGE


def _node(placement: Placement) -> str:
    if placement.gpu is None:
        return "CPU"
    numa = placement.gpu.pci.numa
    return "NUMA node unknown" if numa is None else f"NUMA node {numa}"


def _placement(row: _Row, places: dict[Nic, float]) -> str:
    placement, height = row.placement, _ROW * row.rows - _ROW + _BOX
    gpu = placement.gpu
    name = f"GPU {row.number}  {gpu.pci.address}  {gpu.pci.model}" if gpu else "CPU"
    lines = [
        f'<rect class="gpu" x="{2 * _EDGE}" y="{row.top:g}" width="{_GPU}" height="{height}" rx="4"/>'
        f'<text x="{2 * _EDGE + 8}" y="{row.top + 14:g}">{escape(name)}</text>'
        f'<text class="small" x="{2 * _EDGE + 8}" y="{row.top + 32:g}">cores {cores_text(placement.cores)}'
        f"<title>{escape(placement.cores_reason)}</title></text>\n"
    ]
    middle = row.top + height / 2
    for use in placement.nics:
        end = places[use.nic] + _BOX / 2
        bend = (_LEFT + _RIGHT) / 2
        lines.append(
            f'<path class="wire" d="M{_LEFT} {middle:g}C{bend} {middle:g} {bend} {end:g} {_RIGHT} {end:g}">'
            f"<title>{escape(use.reason)}</title></path>\n"
        )
    return "".join([*lines, *(_nic(use, places[use.nic]) for use in row.own)])


def _nic(use: NicUse, top: float) -> str:
    nic = use.nic
    place = f"  {nic.pci.address}" if nic.pci else ""
    rate = f"  {nic.gbps} Gb/s" if nic.gbps else ""
    return (
        f'<rect class="nic" x="{_RIGHT}" y="{top:g}" width="{_NIC}" height="{_BOX}" rx="4"/>'
        f'<text x="{_RIGHT + 8}" y="{top + 13:g}">{escape(nic.name + place + rate)}</text>'
        f'<text class="small" x="{_RIGHT + _NIC + 8}" y="{top + 13:g}">{escape(use.reason)}</text>\n'
    )


def _notes(lines: Sequence[str], top: float) -> list[str]:
    return [
        f'<text class="small" x="{_EDGE}" y="{top + 18 * place + 10:g}">{escape(line)}</text>\n'
        for place, line in enumerate(lines)
    ]
