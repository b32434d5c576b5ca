"""The command: what it prints and draws, and what it says to wrong values."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sglang_pd_fabric.tools.cli import main

SMALL = ["plan", "--model", "deepseek-r1", "--qps", "2", "--servers", "1:2", "--requests", "60"]


def test_json_has_what_the_text_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["version"] == 1
    assert plan["model"]["kv_bytes_per_token"] == 70_272
    assert plan["servers"] == {"prefill": 1, "decode": 2, "gpus": 24}
    assert set(plan["forecast"]) == set(plan["simulated"]) == {"colocated", "chunked", "disaggregated"}
    assert plan["transfer"]["exposed_layerwise_ms"] < plan["transfer"]["exposed_chunkwise_ms"]
    assert main(SMALL) == 0
    text = capsys.readouterr().out
    assert "70,272 bytes a token" in text
    assert "fleet: 1 prefill, 2 decode, 24 GPUs" in text


def test_both_pictures_are_svg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curves, passes = tmp_path / "curves.svg", tmp_path / "passes.svg"
    assert main([*SMALL, "--svg", str(curves), "--timeline", str(passes)]) == 0
    capsys.readouterr()
    drawn = ElementTree.parse(curves).getroot()
    assert len(drawn.findall(".//{*}polyline")) == 3
    drawn = ElementTree.parse(passes).getroot()
    heads = [each.text for each in drawn.findall(".//{*}text[@class='head']")]
    assert heads[1:] == ["colocated", "chunked", "disaggregated"]
    assert len(drawn.findall(".//{*}rect/{*}title")) > 20


def test_published_figures_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--published"]) == 0
    text = capsys.readouterr().out
    assert "Qwen3-235B TP4, 128K tokens: TTFT disaggregated" in text
    assert "outside" not in text
    assert main(["plan", "--published", "--json"]) == 0
    assert all(
        {"published", "predicted", "error"} <= row.keys() for row in json.loads(capsys.readouterr().out)
    )


def test_a_large_fleet_is_not_simulated_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "qwen3-coder-480b", "--qps", "3000"]) == 0
    assert "not simulated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--model", "gpt-x"], ["--model gpt-x", "deepseek-r1"]),
        (["--gpu", "h900"], ["--gpu h900", "h200"]),
        (["--nic", "roce"], ["--nic roce", "gbps="]),
        (["--nic", "gbps=0,mops=1,us=1"], ["--nic gbps=0", "above 0"]),
        (["--tp", "3"], ["--tp 3", "128 attention heads"]),
        (["--tp", "2"], ["--tp 2", "weights of deepseek-r1 take", "--gpu"]),
        (["--prefill-tp", "0"], ["--tp 0", "1 to 8 GPUs"]),
        (["--dp", "5"], ["--dp 5", "--tp 8"]),
        (["--kv-dtype", "int4"], ["--kv-dtype int4", "bf16, fp8"]),
        (["--page-size", "0"], ["--page-size 0", "above 0"]),
        (["--qps", "-1"], ["--qps -1", "above 0"]),
        (["--qps", "nan"], ["--qps nan", "above 0"]),
        (["--share", "90"], ["--share 90", "0.9"]),
        (["--requests", "-5"], ["--requests -5", "0 or more"]),
        (["--prompt", "long"], ["--prompt long", "lognormal:"]),
        (["--output", "uniform:9-3"], ["--output uniform:9-3", "uniform:500-4000"]),
        (["--output", "0"], ["--output 0", "a number (2000)"]),
        (["--servers", "0:3"], ["--servers 0:3", "1:3"]),
        (["--ttft", "1"], ["--ttft 1", "alone computes for", "--prefill-tp"]),
        (["--tpot", "1"], ["--tpot 1", "for a token"]),
        (["--servers", "90:90", "--timeline", "x.svg"], ["--timeline x.svg", "180 servers", "--servers 1:3"]),
        (["--servers", "1:1", "--svg", "/no/such/folder/x.svg"], ["--svg /no/such", "folder that exists"]),
    ],
)
def test_a_wrong_value_is_named_with_its_flag_and_the_fix(
    flags: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = [] if "--model" in flags else ["--model", "deepseek-r1"]
    assert main(["plan", *base, "--requests", "20", "--qps", "1", *flags]) == 1
    captured = capsys.readouterr()
    assert not captured.out
    for part in parts:
        assert part in captured.err


def test_a_fleet_that_never_settles_says_so_in_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--model", "deepseek-r1", "--qps", "500", "--servers", "1:1", "--requests", "0"]
    assert main([*asked, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert not plan["forecast"]["disaggregated"]["settled"]
    assert main(asked) == 0
    assert "never settles" in capsys.readouterr().out


def test_a_model_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 1
    assert "--model: missing" in capsys.readouterr().err
