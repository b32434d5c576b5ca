"""From readings to records, ratios, goals and tables."""

import json

import pytest

from sglang_pd_fabric.tools.bench.job import Job, OwnCost, Reading, Stages, Submit, Wake
from sglang_pd_fabric.tools.bench.results import Ours, Record, ratios, summarise, tables
from sglang_pd_fabric.tools.bench.workload import SHAPES, Shape

GIGABYTE = Shape("mla", 1, 1, 1_000_000_000)
OWN = OwnCost(
    0.05,
    {1: Submit(8.0, 3.0), 4096: Submit(20.0, 12.0)},
    Stages(0.01, 0.02, 0.015, 0.005),
    Wake(9.0, 40.0),
)


def record(engine: str, transport: str, rates: list[float], cpu: float = 1.0, shape: str = "mla") -> Record:
    rounds = [[Reading(1 / rate, 1 / rate, cpu)] for rate in rates]
    return summarise(
        engine, transport, GIGABYTE._replace(name=shape), rounds, Ours(OWN, 0.7) if engine == "ours" else None
    )


def test_a_round_is_the_median_of_its_readings_and_a_record_the_median_of_rounds() -> None:
    rounds = [
        [Reading(1.0, 2.0, 0.1), Reading(0.5, 1.0, 0.2), Reading(9.0, 9.0, 9.0)],
        [Reading(0.25, 0.25, 0.4)] * 3,
        [Reading(0.125, 0.5, 0.3)] * 3,
    ]
    made = summarise("raw", "tcp", GIGABYTE, rounds, None)
    assert made["gb_per_s_rounds"] == [1.0, 4.0, 8.0]
    assert (made["gb_per_s"], made["gb_per_s_min"], made["gb_per_s_max"]) == (4.0, 1.0, 8.0)
    assert made["gb_per_s_quiet"] == 2.0
    assert made["cpu_s_per_gb"] == pytest.approx(0.3)
    assert made["us_per_page_own"] is None


def test_rates_count_the_bytes_of_the_whole_request() -> None:
    made = summarise("raw", "tcp", SHAPES["small"], [[Reading(1.0, 1.0, 1.0)]], None)
    assert made["gb_per_s"] == pytest.approx(124 * 256 * 1024 / 1e9)


def test_a_record_survives_json_with_all_that_the_issue_asks_for() -> None:
    made = json.loads(json.dumps(record("ours", "shm", [2.0])))
    asked = {"engine", "transport", "shape", "gb_per_s", "gb_per_s_min", "gb_per_s_max", "cpu_s_per_gb"}
    assert asked | {"us_per_page_own"} <= made.keys()
    assert made["us_per_page_own"] == 0.05
    assert made["us_per_submit"] == {"1": [8.0, 3.0], "4096": [20.0, 12.0]}
    assert made["us_per_page_stages"] == {
        "cutting": 0.01,
        "posting": 0.02,
        "completing": 0.015,
        "counting": 0.005,
    }
    assert (made["us_to_first_write"], made["idle_percent"]) == ([9.0, 40.0], 0.7)


def test_a_job_and_its_answers_survive_json() -> None:
    job = Job("ours", "tcp", SHAPES["mla"], 3, 1, "/lib/libfabric.so.1")
    assert Job.from_json(json.loads(json.dumps(job))) == job
    for cost in (OWN, OWN._replace(stages=None)):
        assert OwnCost.from_json(json.loads(json.dumps(cost))) == cost


def test_ours_is_compared_with_the_same_transport_with_what_goals_name_and_with_memcpy() -> None:
    records = [
        record("ours", "shm", [2.0]),
        record("ours", "tcp", [1.0]),
        record("raw", "shm", [2.0]),
        record("nixl", "auto", [1.0]),
        record("nixl", "tcp", [1.0]),
        record("mooncake", "tcp", [1.0]),
        record("memcpy", "auto", [4.0]),
        record("raw", "shm", [9.0], shape="gqa"),
    ]
    assert {(ratio.transport, ratio.against) for ratio in ratios(records)} == {
        ("shm", "raw shm"),
        ("shm", "nixl auto"),
        ("shm", "memcpy auto"),
        ("tcp", "nixl tcp"),
        ("tcp", "mooncake tcp"),
        ("tcp", "memcpy auto"),
    }


def test_a_ratio_is_one_of_medians_and_shows_its_range_over_rounds() -> None:
    [ratio] = ratios([record("ours", "tcp", [2.0, 6.0, 9.0]), record("nixl", "tcp", [2.0, 2.0, 1.0])])
    assert (ratio.speed, ratio.speed_min, ratio.speed_max) == (3.0, 1.0, 9.0)


@pytest.mark.parametrize(
    ("speed", "cpu", "reached"), [(2.5, 0.9, True), (2.4, 0.9, False), (3.0, 1.1, False)]
)
def test_over_tcp_the_goal_is_speed_and_less_cpu(speed: float, cpu: float, reached: bool) -> None:
    [ratio] = ratios([record("ours", "tcp", [speed], cpu), record("nixl", "tcp", [1.0])])
    assert ratio.speed_goal == 2.5
    assert ratio.reached is reached


def test_over_shm_the_goal_is_speed_alone_and_the_bare_loop_is_no_goal() -> None:
    others = [record("nixl", "auto", [1.0]), record("raw", "shm", [1.0])]
    by_name = {ratio.against: ratio for ratio in ratios([record("ours", "shm", [1.3], 5.0), *others])}
    assert by_name["nixl auto"].reached is True
    assert by_name["raw shm"].reached is None


def test_the_tables_show_figures_ratios_and_own_cost() -> None:
    text = tables([record("ours", "tcp", [3.0]), record("nixl", "tcp", [1.0], cpu=2.0)])
    assert "mla    ours    tcp        3.00" in text
    assert "x 0.50 (< 1)" in text
    assert "20.0 / 12.0" in text
    assert "mla    tcp      0.0100   0.0200   0.0150      0.0050" in text
    assert "tcp      0.70               9.0                        40.0" in text


def test_the_goal_of_mapped_is_the_memcpy_into_the_same_memory_and_the_other_one_stands_beside_it() -> None:
    others = [record("memcpy", "mapped", [1.0]), record("memcpy", "auto", [1.5])]
    by_name = {ratio.against: ratio for ratio in ratios([record("ours", "mapped", [0.95]), *others])}
    assert by_name["memcpy mapped"].reached is True
    assert by_name["memcpy auto"].reached is None


def test_without_anything_of_ours_there_is_one_table() -> None:
    assert "\n\n" not in tables([record("memcpy", "auto", [3.0])])
