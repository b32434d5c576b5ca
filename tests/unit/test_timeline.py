"""The timeline: a request out of two traces, and its picture."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from sglang_pd_fabric.tools import cli
from sglang_pd_fabric.tools.timeline.draw import draw
from sglang_pd_fabric.tools.timeline.events import (
    Pass,
    Timeline,
    UnfinishedError,
    Write,
    last_request,
    read_folder,
)
from sglang_pd_fabric.tools.timeline.main import describe

SVG = "{http://www.w3.org/2000/svg}"
MS = 1_000_000


def event(kind: str, ms: float, **fields: int) -> dict[str, Any]:
    return {"kind": kind, "ns": round(ms * MS), **fields}


def write(kind: str, ms: float, after: int, slot: int = 3, nic: int = 0, nbytes: int = 100) -> dict[str, Any]:
    return event(kind, ms, slot=slot, generation=1, units=1, nbytes=nbytes, nic=nic, after=after)


EARLIER = [
    event("pull", 0, room=1, slot=3, generation=7),
    *(
        event("pass", 1, forward=1),
        event("layer", 2, forward=1, steps=1),
        event("layer", 3, forward=2, steps=0),
    ),
]
PREFILL = [
    *EARLIER,
    event("pull", 5, room=2, slot=3, generation=1),
    *(event("pass", 10, forward=2), event("layer", 12, forward=2, steps=1)),
    *(write("post", 12.1, 1), write("post", 12.2, 1)),
    *(write("post", 12.3, 1, slot=4), write("done", 12.4, 1, slot=4)),  # another request's
    event("layer", 15, forward=2, steps=2),
    *(write("done", 15.1, 1), write("post", 15.2, 2, nic=1), write("done", 16, 1)),
    event("layer", 18, forward=3, steps=0),
    *(event("pass", 20, forward=3), event("layer", 22, forward=3, steps=1), write("post", 22.1, 1)),
    *(write("done", 21, 2, nic=1), write("done", 23, 1)),
    *(event("layer", 24, forward=3, steps=2), event("layer", 26, forward=4, steps=0)),
    *(write("post", 26.5, 0, nbytes=10), write("done", 27, 0, nbytes=10)),
]
DECODE = [event("complete", 4, room=1), event("complete", 30, room=2)]


def test_writes_are_put_together_with_their_ends_and_their_passes() -> None:
    found = last_request(PREFILL, DECODE)
    assert found.passes == [
        Pass(2, 10 * MS, (12 * MS, 15 * MS), 18 * MS),
        Pass(3, 20 * MS, (22 * MS, 24 * MS), 26 * MS),
    ]
    assert found.complete_ns == 30 * MS
    assert [(each.nic, each.forward, each.layer, each.done_ns / MS) for each in found.writes] == [
        (0, 2, 1, 15.1),
        (0, 2, 1, 16),
        (1, 2, 2, 21),
        (0, 3, 1, 23),
        (0, 0, 0, 27),
    ]


@pytest.mark.parametrize(
    ("prefill", "decode", "says"),
    [
        (PREFILL, [], "completed no request"),
        (EARLIER, [event("complete", 4, room=9)], "knows nothing of request 9"),
        (PREFILL[:-1], DECODE, "1 writes have not ended"),
        (PREFILL[:-2], DECODE, "metadata row"),
        (PREFILL[:-3], DECODE, r"passes \[3\] have not ended, of 2"),
    ],
)
def test_a_request_that_is_not_all_there_is_not_drawn(prefill: Any, decode: Any, says: str) -> None:
    with pytest.raises(UnfinishedError, match=says):
        last_request(prefill, decode)


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path: Path) -> None:
    with pytest.raises(UnfinishedError, match="0 traces of prefill"):
        read_folder(tmp_path)
    (tmp_path / "prefill-1.jsonl").write_text('{"kind": "pass", "ns": 1}\n{"kind": "la')
    (tmp_path / "decode-2.jsonl").write_text("")
    assert read_folder(tmp_path) == [[{"kind": "pass", "ns": 1}], []]


def test_the_picture_shows_all_of_it_in_its_place() -> None:
    passes = [Pass(1, 0, (25 * MS, 50 * MS), 100 * MS), Pass(2, 100 * MS, (125 * MS, 150 * MS), 200 * MS)]
    writes = [
        Write(0, 1, 1, 100, 25 * MS, 50 * MS),
        Write(1, 2, 2, 100, 150 * MS, 175 * MS),
        Write(0, 0, 0, 10, 200 * MS, 200 * MS),
    ]
    svg = ET.fromstring(draw(Timeline(passes, writes, 400 * MS), "a & b"))
    first, second, *bars = [
        (float(r.attrib["x"]), float(r.attrib["width"]), float(r.attrib["y"])) for r in svg.iter(f"{SVG}rect")
    ]
    assert first[1] == second[1] > 0
    assert second[0] == pytest.approx(first[0] + first[1], abs=0.2)
    assert first[0] + first[1] / 4 == pytest.approx(bars[0][0], abs=0.2)
    assert bars[0][1] == pytest.approx(first[1] / 4, abs=0.2)
    assert all(bar[2] > first[2] for bar in bars)
    assert bars[1][1] > 0  # the metadata row took no time, and can be seen
    texts = [text.text or "" for text in svg.iter(f"{SVG}text")]
    assert {"a & b", "pass 1", "pass 2", "NIC 0, writes", "NIC 1, writes", "layer 2", "metadata"} <= set(
        texts
    )
    assert any("200.00 ms later" in text for text in texts)


def test_the_command_draws_traces_that_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, events in (("prefill-1", PREFILL), ("decode-2", DECODE)):
        lines = "".join(json.dumps(one) + "\n" for one in events)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    out = tmp_path / "out.svg"
    assert cli.main(["timeline", "--traces", str(tmp_path), "--out", str(out)]) == 0
    assert ET.fromstring(out.read_text()).tag == f"{SVG}svg"
    assert describe(last_request(PREFILL, DECODE)) in capsys.readouterr().out
    (tmp_path / "decode-2.jsonl").write_text("")
    assert cli.main(["timeline", "--traces", str(tmp_path), "--out", str(out)]) == 1
    assert "completed no request" in capsys.readouterr().err
