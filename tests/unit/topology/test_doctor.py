"""The doctor's checks on machines that are written to disk, and its one screen on this machine."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_pd_fabric.fabric.topology import scan
from sglang_pd_fabric.fabric.topology.interfaces import Interfaces
from sglang_pd_fabric.settings import Settings
from sglang_pd_fabric.tools import cli
from sglang_pd_fabric.tools.doctor import main as doctor
from sglang_pd_fabric.tools.doctor import memory, network, software
from sglang_pd_fabric.tools.doctor.finding import Finding, Level, to_data, to_text, worst
from sglang_pd_fabric.tools.doctor.place import Place

from . import machines

Make = Callable[..., Place]


@pytest.fixture
def hgx(tmp_path: Path) -> Make:
    """A place with the NICs and GPUs of a DGX H100, and whatever files are given."""

    def make(**files: str) -> Place:
        machine = machines.dgx_h100()
        if not (tmp_path / "sys").exists():
            machine.write(tmp_path / "sys")
        place = _place(tmp_path)
        for path, text in files.items():
            file = tmp_path / path.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return replace(place, topology=scan(tmp_path / "sys", machine.cpus))

    return make


def _place(root: Path, **addresses: tuple[str, ...]) -> Place:
    interfaces = Interfaces(addresses, lambda address: address == "10.0.0.1")
    return Place(Settings(), root, scan(root / "sys", {0}), interfaces, 1 << 20)


def _levels(findings: Iterator[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


def test_links_that_are_up_are_fine_and_missing_device_nodes_are_not(hgx: Make) -> None:
    found = list(network.nics(hgx()))
    assert [f.level for f in found if "mlx5_0 " in f.text] == [Level.OK]
    assert (found[-1].level, found[-1].text) == (Level.FAIL, "/dev/infiniband is absent")
    assert Level.FAIL not in _levels(network.nics(hgx(dev__infiniband__uverbs0="")))


def test_a_link_that_is_down_is_named(hgx: Make) -> None:
    place = hgx(dev__infiniband__uverbs0="")
    nic = next(nic for nic in place.topology.nics if nic.name == "mlx5_3")
    down = replace(nic, ports=tuple(replace(port, state="DOWN") for port in nic.ports))
    found = list(network.nics(replace(place, topology=replace(place.topology, nics=(down,)))))
    assert found[0].level is Level.WARN
    assert "mlx5_3" in found[0].text
    assert "DOWN" in found[0].text


@pytest.mark.parametrize(
    ("gid", "level"), [("0000:" * 7 + "0000", Level.FAIL), ("fe80:" + "0:" * 6 + "1", None)]
)
def test_a_port_without_gid_cannot_be_reached(hgx: Make, gid: str, level: Level | None) -> None:
    place = hgx(dev__infiniband__uverbs0="", sys__class__infiniband__mlx5_9__ports__1__gids__0=gid)
    nic = next(nic for nic in place.topology.nics if nic.rdma)
    port = replace(nic.ports[0], number=1, state="ACTIVE", link_layer="Ethernet")
    nic = replace(nic, name="mlx5_9", ports=(port,))
    found = list(network.nics(replace(place, topology=replace(place.topology, nics=(nic,)))))
    assert [f.level for f in found if "GID" in f.text] == ([level] if level else [])


def test_gpus_without_a_driver_are_a_failure_and_no_gpus_are_none(
    hgx: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "find_driver", lambda: None)
    assert _levels(memory.gpus(hgx())) == [Level.FAIL]
    assert _levels(memory.gpus(_place(tmp_path / "empty"))) == [Level.OK]


@pytest.mark.parametrize(("files", "level"), [(1 << 20, Level.OK), (8192, Level.WARN), (1024, Level.FAIL)])
def test_few_open_files(tmp_path: Path, files: int, level: Level) -> None:
    assert list(memory.limits(replace(_place(tmp_path), open_files=files)))[-1].level is level


@pytest.mark.parametrize(("scope", "level"), [("0", Level.OK), ("1", Level.WARN)])
def test_ptrace_scope_decides_on_cma(hgx: Make, scope: str, level: Level) -> None:
    place = hgx(proc__sys__kernel__yama__ptrace_scope=scope)
    found = list(memory.shared(place))
    assert (found[0].level, found[1].level) == (Level.WARN, level)  # it has no /dev/shm either
    assert ("SYS_PTRACE" in found[1].todo) == (level is Level.WARN)


@pytest.mark.parametrize(
    ("enabled", "total", "level"),
    [
        ("always madvise [never]", 0, Level.WARN),
        ("always madvise [never]", 8, Level.OK),
        ("[always]", 0, Level.OK),
    ],
)
def test_huge_pages(hgx: Make, enabled: str, total: int, level: Level) -> None:
    place = hgx(
        proc__meminfo=f"HugePages_Total: {total}\nHugePages_Free: 0\nHugepagesize: 2048 kB\n",
        sys__kernel__mm__transparent_hugepage__enabled=enabled,
        proc__sys__kernel__numa_balancing="1",
    )
    assert _levels(memory.pages(place)) == [level, Level.WARN]  # and two nodes are balanced


def test_addresses_that_cannot_be_used_and_choices_that_should_be_made(tmp_path: Path) -> None:
    place = _place(tmp_path, lo=("127.0.0.1",), eth0=("10.0.0.1",), docker0=("172.17.0.1",))
    assert next(network.addresses(place)).level is Level.OK
    two = _place(tmp_path, eth0=("10.0.0.1",), eth1=("10.1.0.1",))
    assert next(network.addresses(two)).level is Level.WARN
    wrong = replace(two, settings=Settings(host="10.9.9.9"))
    assert next(network.addresses(wrong)).level is Level.FAIL


def test_a_provider_that_was_asked_for_and_is_not_there_fails(tmp_path: Path) -> None:
    place = replace(_place(tmp_path), settings=Settings(provider="efa"))
    found = [finding for finding in network.libfabric(place) if finding.area == "provider"]
    assert _levels(iter(found)) == [Level.FAIL]
    assert "efa" in found[0].text
    assert found[0].todo


def test_a_second_libfabric_is_named(tmp_path: Path) -> None:
    assert not any("there are others" in f.text for f in network.libfabric(_place(tmp_path)))
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libfabric.so.1").touch()
    found = [finding for finding in network.libfabric(_place(tmp_path)) if "there are others" in finding.text]
    assert _levels(iter(found)) == [Level.WARN]
    assert "usr/lib64/libfabric.so.1" in found[0].text


def test_places_for_hooks_are_looked_up_in_the_sources() -> None:
    target = "sglang.srt.managers.scheduler.Scheduler.run_batch"
    assert software.defines(target)
    assert not software.defines(target + "_of_another_release")
    assert not software.defines("sglang.srt.no_such_module.function")


def test_the_sglang_that_we_support_is_found_to_be_right(tmp_path: Path) -> None:
    """All places for hooks: some are names that a module imports from another."""
    pytest.importorskip("sglang", reason="SGLang is not installed")
    found = list(software.sglang(_place(tmp_path)))
    assert not [finding.text for finding in found if finding.level is Level.FAIL]
    assert any("places for hooks found" in finding.text for finding in found)


def test_a_check_that_breaks_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_place: Place) -> Iterator[Finding]:
        yield Finding("x", Level.OK, "before")
        raise OSError("no such file")

    monkeypatch.setattr(doctor, "CHECKS", (broken,))
    found = list(doctor.examine(_place(tmp_path)))
    assert _levels(iter(found)) == [Level.OK, Level.WARN]
    assert "no such file" in found[1].text


def test_the_screen_ends_with_what_it_means() -> None:
    found = [Finding("a", Level.OK, "good"), Finding("b", Level.FAIL, "bad", "do this")]
    assert to_text(found).splitlines()[-1] == "1 to be fixed before a server starts, 0 to look at"
    assert "-> do this" in to_text(found)
    assert worst(found) is Level.FAIL
    assert to_data(found)["level"] == "fail"


def test_this_machine_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["doctor", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert status == int(data["level"] == "fail")
    assert {row["area"] for row in data["findings"]} >= {"SGLang", "libfabric", "NICs", "limits", "clock"}
    assert not [row for row in data["findings"] if row["area"] == "doctor"]
