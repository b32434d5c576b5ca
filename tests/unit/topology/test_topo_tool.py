"""``sglang-pd-fabric topo``: what people and programs read."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sglang_pd_fabric.tools.topo.main import main

from . import machines

DOCS = Path(__file__).parents[3] / "docs"


def topo(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def test_the_text_shows_gpu_nics_cores_and_reasons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.hgx_h100_ethernet_front_end().write(tmp_path)
    lines = topo(capsys, "--sysfs", str(tmp_path)).splitlines()
    assert lines[0] == (
        f"{tmp_path}: 8 GPUs, 8 of 13 NICs in use, 2 NUMA nodes, 112 cores, 224 of 224 CPUs allowed"
    )
    assert lines[2:5] == [
        "GPU 0  0000:1b:00.0  10de:2330  NUMA 0",
        "  mlx5_0  0000:18:00.0  400 Gb/s  NUMA 0  same PCIe switch 0000:16:00.0",
        "  cores  0-13 (siblings 112-125)  (CPUs 0-55,112-167 near 0000:18:00.0; divided among 4 GPUs)",
    ]
    left_out = lines[lines.index("left out") + 1]
    assert left_out.split("  ")[1] == "eno1"
    assert left_out.endswith("no RDMA device (driver igb)")


def test_the_json_has_the_same_with_the_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machines.p5().write(tmp_path)
    data = json.loads(topo(capsys, "--sysfs", str(tmp_path), "--json"))
    assert data["version"] == 1
    assert data["allowed_cpus"] == "0-191"
    first = data["placements"][0]
    assert (first["gpu"], first["numa"], first["cores"][0]) == ("0000:53:00.0", 0, [1, 97])
    assert first["nics"][0]["name"] == "rdmap79s0"
    assert first["nics"][0]["reason"] == "same PCIe switch 0000:45:00.0"
    assert {nic["reason"] for nic in data["left_out"]} == {"no RDMA device (driver ena)"}


def test_this_machine_is_shown_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert topo(capsys).startswith("/sys: ")


def test_a_machine_without_sys_is_shown_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = topo(capsys, "--sysfs", str(tmp_path / "none"))
    assert "note: no PCI devices in" in out
    assert "only libfabric's tcp and shm" in out


def test_cpus_limit_the_cores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machines.cpu_host().write(tmp_path)
    data = json.loads(topo(capsys, "--sysfs", str(tmp_path), "--json", "--cpus", "16-17,48"))
    assert data["placements"][0]["cores"] == [[16, 48], [17]]
    assert [nic["name"] for nic in data["placements"][0]["nics"]] == ["mlx5_1"]


@pytest.mark.parametrize("nics", ["mlx5_1,mlx5_7", '{"0": "mlx5_1", "4": "mlx5_7"}'])
def test_sglangs_flag_can_be_tried_out(tmp_path: Path, capsys: pytest.CaptureFixture[str], nics: str) -> None:
    machines.dgx_h100().write(tmp_path)
    data = json.loads(topo(capsys, "--sysfs", str(tmp_path), "--json", "--disaggregation-ib-device", nics))
    used = [[nic["name"] for nic in placement["nics"]] for placement in data["placements"]]
    assert used[0] == ["mlx5_1"]
    assert used[4] == ["mlx5_7"]
    assert len(data["left_out"]) == 10


def test_a_wrong_flag_ends_the_tool_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.dgx_h100().write(tmp_path)
    assert main(["--sysfs", str(tmp_path), "--disaggregation-ib-device", "mlx5_99"]) == 1
    assert "there is no mlx5_99" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machine", "nics", "wires"), [("p5", 32, 32), ("hgx_4_nics", 4, 8), ("cpu_host", 2, 2)]
)
def test_the_picture_has_every_nic_and_a_wire_for_each_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str, nics: int, wires: int
) -> None:
    getattr(machines, machine)().write(tmp_path)
    topo(capsys, "--sysfs", str(tmp_path), "--svg", str(tmp_path / "topo.svg"))
    drawn = ElementTree.parse(tmp_path / "topo.svg")
    assert len(drawn.findall(".//{*}rect[@class='nic']")) == nics
    reasons = [each.text for each in drawn.findall(".//{*}path[@class='wire']/{*}title")]
    assert len(reasons) == wires
    assert all(reasons)


def test_a_picture_that_cannot_be_written_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--svg", "/no/such/folder/topo.svg"]) == 1
    assert "--svg /no/such/folder/topo.svg: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machine", "picture"), [("p5", "topo-p5.svg"), ("hgx_h100_ethernet_front_end", "topo-hgx-h100.svg")]
)
def test_the_documents_pictures_are_what_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str, picture: str
) -> None:
    getattr(machines, machine)().write(tmp_path)
    topo(capsys, "--sysfs", str(tmp_path), "--svg", str(tmp_path / "topo.svg"))
    assert (tmp_path / "topo.svg").read_text() == (DOCS / picture).read_text()
