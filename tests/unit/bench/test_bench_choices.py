"""Who takes part, what is refused with which words, and the chart."""

import argparse
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from sglang_pd_fabric.tools.bench import chart, main, rounds
from sglang_pd_fabric.tools.bench.job import Reading
from sglang_pd_fabric.tools.bench.results import summarise
from sglang_pd_fabric.tools.bench.workload import SHAPES


def options(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    main.add_arguments(parser)
    return parser.parse_args(flags)


def test_the_default_is_every_shape_over_shm_and_tcp_beside_memcpy() -> None:
    chosen = options()
    assert (chosen.shapes, chosen.providers, chosen.peers) == (
        ["mla", "gqa", "small"],
        ["shm", "tcp"],
        ["memcpy"],
    )
    assert chosen.rounds >= 5


def test_the_bare_loop_runs_beside_ours_and_nixl_both_ways() -> None:
    names = rounds.contenders(["tcp"], ["nixl", "mooncake"], with_raw4=True)
    assert [" ".join(name) for name in names] == [
        "ours tcp",
        "raw tcp",
        "raw4 tcp",
        "nixl auto",
        "nixl tcp",
        "mooncake tcp",
    ]


@pytest.mark.parametrize("flags", [("--shapes", "mla,large"), ("--peers", "ucx"), ("--rounds", "0")])
def test_what_is_unknown_ends_the_command(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(*flags)
    assert flags[0] in capsys.readouterr().err


def test_a_provider_without_a_profile_is_named() -> None:
    with pytest.raises(rounds.ChoiceError, match="no profile for provider carrier; there is"):
        rounds.contenders(["carrier"], [], with_raw4=False)


def test_nothing_bare_runs_beside_a_mapped_peer_but_memcpy_into_such_memory() -> None:
    assert rounds.contenders(["mapped"], ["memcpy"], with_raw4=True) == [
        ("ours", "mapped"),
        ("memcpy", "auto"),
        ("memcpy", "mapped"),
    ]


def test_a_peer_that_is_not_installed_is_named_with_the_command_that_helps(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    plan = rounds.Plan(
        [SHAPES["gqa"]], rounds.contenders([], ["nixl"], with_raw4=False), 1, 1, 1, "", str(python)
    )
    with pytest.raises(rounds.ChoiceError, match=r"has no nixl: pip install 'sglang-pd-fabric\[peers\]'"):
        rounds.check_installed(plan)


def test_memcpy_needs_no_peer() -> None:
    plan = rounds.Plan([], rounds.contenders([], ["memcpy"], with_raw4=False), 1, 1, 1, "", sys.executable)
    rounds.check_installed(plan)


def test_the_chart_has_a_bar_for_each_record_longest_first_and_is_well_formed() -> None:
    records = [
        summarise(engine, transport, SHAPES[shape], [[Reading(seconds, seconds, 1.0)]], None)
        for shape in ("mla", "gqa")
        for engine, transport, seconds in (
            ("nixl", "tcp", 2.0),
            ("ours", "tcp", 1.0),
            ("memcpy", "auto", 0.5),
        )
    ]
    root = ET.fromstring(chart.draw(records))
    svg = "{http://www.w3.org/2000/svg}"
    widths = [float(bar.attrib["width"]) for bar in root.iter(f"{svg}rect")]
    assert len(widths) == len(records)
    assert widths[:3] == sorted(widths[:3], reverse=True)
    texts = [text.text for text in root.iter(f"{svg}text")]
    assert "mla, GB/s" in texts
    assert "ours tcp" in texts
