"""The hand-over bench without servers: joining time stamps, summing up, the table, and what it refuses."""

import argparse
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.integration.stamps import Stamp, read
from sglang_pd_fabric.tools.bench import handover
from sglang_pd_fabric.tools.bench.handover.times import (
    Record,
    Request,
    StampError,
    Times,
    join,
    p90,
    summarise,
    table,
)

MS = 1_000_000


def stamps_of(room: int, start: int, taken: float, handover: float) -> list[Stamp]:
    return [
        Stamp("computed", room, start),
        Stamp("taken", room, start + round(taken * MS)),
        Stamp("transferred", room, start + round(handover * MS)),
    ]


def test_stamps_of_both_processes_meet_by_room_in_any_order() -> None:
    stamps = stamps_of(1, 10 * MS, 1, 3) + stamps_of(2, 11 * MS, 2, 8) + stamps_of(3, 12 * MS, 1, 1)
    random.Random(0).shuffle(stamps)
    assert join(stamps, [1, 2]) == {1: Times(1, 3), 2: Times(2, 8)}


def test_the_last_chunk_of_a_prompt_counts() -> None:
    first = [Stamp("computed", 1, 0), Stamp("taken", 1, MS)]
    assert join([*stamps_of(1, 5 * MS, 1, 4), *first], [1]) == {1: Times(1, 4)}


@pytest.mark.parametrize("event", ["computed", "taken", "transferred"])
def test_a_missing_stamp_is_named(event: str) -> None:
    stamps = [stamp for stamp in stamps_of(7, 0, 1, 2) if stamp.event != event]
    with pytest.raises(StampError, match=f"room 7 was never {event}"):
        join(stamps, [7])


def test_a_transfer_before_the_forward_pass_is_refused() -> None:
    with pytest.raises(StampError, match="room 7 was transferred before"):
        join(stamps_of(7, 10 * MS, 1, -1), [7])


@given(st.lists(st.integers(-50, 50), min_size=1))
def test_p90_is_the_smallest_value_that_nine_tenths_do_not_exceed(values: list[int]) -> None:
    found = p90(values)

    def enough(limit: float) -> bool:
        return 10 * sum(value <= limit for value in values) >= 9 * len(values)

    assert enough(found)
    assert not any(enough(value) for value in values if value < found)


def test_each_backend_and_length_is_summed_up_by_itself() -> None:
    requests = [
        Request("fabric", 256, 1, 0.030),
        Request("fabric", 256, 2, 0.010),
        Request("fabric", 256, 3, 0.020),
        Request("nixl", 256, 4, 0.040),
        Request("fabric", 1024, 5, 0.050),
        Request("ordinary", 256, 6, 0.005),
    ]
    stamps = [
        stamp
        for room, handover in ((1, 2), (2, 9), (3, 4), (4, 20), (5, 5))
        for stamp in stamps_of(room, room * MS, 1, handover)
    ]
    assert summarise(requests, stamps) == [
        Record("fabric", 256, 3, 20.0, 4, 9, 1, (2, 9, 4)),
        Record("nixl", 256, 1, 40.0, 20, 20, 1, (20,)),
        Record("fabric", 1024, 1, 50.0, 5, 5, 1, (5,)),
        Record("ordinary", 256, 1, 5.0),
    ]


def test_the_table_marks_where_ours_takes_more_than_half() -> None:
    lines = table(
        [
            Record("fabric", 256, 50, 20, 4, 6, 1),
            Record("mooncake_tcp", 256, 50, 22, 8, 10, 1),
            Record("nixl", 256, 50, 23, 5, 7, 1),
            Record("ordinary", 256, 50, 9.5),
        ]
    ).splitlines()
    assert lines[0].split() == "backend tokens requests hand-over ms p90 ms TTFT ms ours / it".split()  # noqa: SIM905
    assert [line.split() for line in lines[1:]] == [
        ["fabric", "256", "50", "4.00", "6.00", "20.0"],
        ["mooncake_tcp", "256", "50", "8.00", "10.00", "22.0", "0.50"],
        ["nixl", "256", "50", "5.00", "7.00", "23.0", "0.80", "!"],
        ["ordinary", "256", "50", "9.5"],
    ]


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    whole = '{"event": "taken", "room": 5, "ns": 17}\n'
    (tmp_path / "1.jsonl").write_text(whole + whole[:20])
    (tmp_path / "2.jsonl").write_text(whole.replace("5", "6"))
    assert read(tmp_path) == [Stamp("taken", 5, 17), Stamp("taken", 6, 17)]


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--backends", "fabric,moon", "'moon' is none of fabric, mooncake_tcp, nixl, fabric_chunkwise"),
        ("--lengths", "8192", "too long"),
        ("--requests", "0", "too small"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, says: str
) -> None:
    parser = argparse.ArgumentParser()
    handover.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([flag, value])
    assert says in capsys.readouterr().err
