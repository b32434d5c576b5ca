"""Overlap: figures from readings, and one real run of a shape scaled down."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from sglang_pd_fabric.fabric.progress import TraceEvent
from sglang_pd_fabric.tools.bench import main as bench
from sglang_pd_fabric.tools.bench.overlap import chart, figures
from sglang_pd_fabric.tools.bench.overlap import main as overlap
from sglang_pd_fabric.tools.bench.overlap.delay import post_delays
from sglang_pd_fabric.tools.bench.overlap.readings import Delays, Reading, Way, quantiles
from sglang_pd_fabric.tools.bench.workload import Shape

SHAPE = Shape("mla", layers=10, pages=10, page_bytes=1024)


def reading(hidden: int, exposed_ms: float, chunkwise_ms: float = 8.0) -> Reading:
    ways = Way(hidden, round(exposed_ms * 1e6)), Way(0, round(chunkwise_ms * 1e6))
    return Reading(8_000_000, 10_000_000, *ways)


def event(kind: str, ns: int, after: int = 0) -> TraceEvent:
    return TraceEvent(ns, kind, 0, 0, slot=0, generation=1, units=1, nbytes=1024, nic=0, after=after)


CASE = figures.case("tcp", SHAPE, [reading(90, 1.0), reading(95, 0.5), reading(10, 7.0)])


def test_a_case_is_the_median_of_its_readings_with_their_range() -> None:
    assert (CASE["hidden_fraction"], CASE["hidden_fraction_min"], CASE["hidden_fraction_max"]) == (
        0.9,
        0.1,
        0.95,
    )
    assert (CASE["exposed_ms"], CASE["exposed_ms_chunkwise"]) == (1.0, 8.0)
    assert (CASE["transfer_ms"], CASE["pass_ms"], CASE["hidden_fraction_chunkwise"]) == (8.0, 10.0, 0.0)


def test_the_results_show_the_worst_case_on_top() -> None:
    worse = figures.case("shm", SHAPE, [reading(50, 4.0)])
    found = figures.results([CASE, worse], None)
    assert found["hidden_fraction"] == 0.5
    assert found["post_delay_us"] is None
    text = figures.tables(found)
    assert "0.900   0.100 - 0.950  >= 0.9  yes" in text
    assert "0.500   0.500 - 0.500  >= 0.9  NO" in text


def test_quantiles_are_samples_and_the_largest_is_not_hidden() -> None:
    found = quantiles([1000 * (i + 1) for i in range(999)] + [10**9])
    assert found == {"p50": 500.0, "p99": 990.0, "p999": 999.0, "max": 1e6, "samples": 1000}
    assert quantiles([2000]) == {"p50": 2.0, "p99": 2.0, "p999": 2.0, "max": 2.0, "samples": 1}


@pytest.mark.parametrize(("slow", "reached"), [(14_000, "yes"), (16_000, "NO")])
def test_the_delay_has_a_goal_where_the_thread_spins(slow: int, reached: str) -> None:
    found = figures.results([CASE], Delays(quantiles([1000] * 90 + [slow] * 10), quantiles([50_000])))
    lines = figures.tables(found).splitlines()
    (spins,) = [line for line in lines if line.startswith("spins")]
    (sleeps,) = [line for line in lines if line.startswith("sleeps")]
    assert spins.endswith(reached)
    assert sleeps.endswith(" 1")


def test_a_delay_runs_from_a_layers_stamp_to_the_first_post_that_holds_it() -> None:
    events = [
        event("step", 105),
        *(event("post", 110, 1), event("post", 120, 1), event("done", 130, 1)),
        event("post", 330, 3),  # layers 2 and 3 were both done when the thread looked
    ]
    assert post_delays(events, [100, 200, 300]) == [10, 130, 30]
    with pytest.raises(ValueError, match="3 of 4 layers"):
        post_delays(events, [100, 200, 300, 400])


def test_the_chart_has_a_panel_for_each_case_and_bars_to_scale() -> None:
    svg = ET.fromstring(chart.draw([CASE, {**CASE, "transport": "shm"}]))
    bars = [float(bar.attrib["width"]) for bar in svg.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(bars) == 8
    length, exposed, _, late = bars[:4]
    assert exposed / length == pytest.approx(0.1, rel=0.02)
    assert late / length == pytest.approx(0.8, rel=0.02)


def test_both_ways_are_measured_and_without_layers_nothing_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes over real providers; each transfer ends with all its units, and the data is checked."""
    monkeypatch.setitem(overlap.SHAPES, "small", Shape("small", layers=4, pages=8, page_bytes=1024))
    out, picture = tmp_path / "overlap.json", tmp_path / "overlap.svg"
    sizes = ["--rounds", "1", "--repetitions", "2", "--samples", "300", "--pass-ratio", "20"]
    files = ["--json", str(out), "--svg", str(picture)]
    assert bench.main(["overlap", "--shapes", "small", *sizes, *files]) == 0
    found = json.loads(out.read_text())
    assert [(case["transport"], case["repetitions"]) for case in found["cases"]] == [
        ("shm", 2),
        ("tcp", 2),
        ("mapped", 2),
    ]
    assert found["hidden_fraction_chunkwise"] == 0
    for case in found["cases"]:
        assert 0 <= case["hidden_fraction"] <= 0.75  # the last of four layers is done when the pass ends
        assert case["exposed_ms"] > 0
        assert case["pass_ms"] > 0
    spinning, sleeping = found["post_delay_us"], found["post_delay_us_sleeping"]
    assert (spinning["samples"], sleeping["samples"]) == (300, 30)
    for delay in (spinning, sleeping):
        assert 0 < delay["p50"] <= delay["p99"] <= delay["max"]
    assert picture.read_text().startswith("<svg")
