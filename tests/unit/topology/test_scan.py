"""What is read from sysfs is what is there, and what is missing is said."""

from dataclasses import replace
from pathlib import Path

import pytest

from sglang_pd_fabric.fabric.topology import Core, scan
from sglang_pd_fabric.fabric.topology.cpulist import format_cpulist, parse_cpulist
from sglang_pd_fabric.fabric.topology.model import Port, pci_address

from . import machines
from .conftest import Look
from .trees import Function, Machine


def test_a_gpu_is_found_with_its_place_on_the_pcie_tree(look: Look) -> None:
    gpu = look(machines.p5()).gpus[0]
    assert gpu.address == "0000:53:00.0"
    assert gpu.pci.path == ("pci0000:44", "0000:44:00.0", "0000:45:00.0", "0000:46:01.4", "0000:53:00.0")
    assert gpu.pci.model == "10de:2330"
    assert gpu.pci.numa == 0
    assert format_cpulist(gpu.pci.local_cpus) == "0-47,96-143"


def test_a_nic_is_found_with_its_rdma_device_interface_driver_and_port(look: Look) -> None:
    nic = next(nic for nic in look(machines.dgx_h100()).nics if nic.name == "mlx5_3")
    assert nic.rdma
    assert nic.driver == "mlx5_core"
    assert nic.netdevs == ("ib3",)
    assert nic.ports == (Port(1, "ACTIVE", 400, "InfiniBand"),)


@pytest.mark.parametrize(
    ("machine", "gpus", "rdma"),
    [
        (machines.p4d(), 8, 4),
        (machines.p5(), 8, 32),
        (machines.p5en(), 8, 16),
        (machines.p6_b200(), 8, 8),
        (machines.dgx_h100(), 8, 12),
        (machines.laptop(), 0, 0),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_every_gpu_and_rdma_nic_is_found_and_nothing_else(
    look: Look, machine: Machine, gpus: int, rdma: int
) -> None:
    topology = look(machine)
    assert (len(topology.gpus), sum(nic.rdma for nic in topology.nics)) == (gpus, rdma)


def test_threads_of_a_core_are_one_core(look: Look) -> None:
    cores = look(machines.p5()).cores
    assert len(cores) == 96
    assert cores[0] == Core((0, 96), 0)
    assert cores[-1] == Core((95, 191), 1)


def test_numa_minus_one_means_unknown(look: Look) -> None:
    topology = look(machines.vm())
    assert {device.pci.numa for device in topology.gpus} == {None}


def test_a_vgpu_function_of_a_gpu_is_not_another_gpu(look: Look) -> None:
    root = "pci0000:10/0000:10:01.0"
    functions = (
        Function(f"{root}/0000:11:00.0", machines.A100, 0),
        Function(f"{root}/0000:11:00.4", machines.A100, 0, physfn="0000:11:00.0"),
    )
    assert [gpu.address for gpu in look(Machine("vgpu", functions)).gpus] == ["0000:11:00.0"]


def test_rdma_in_software_is_seen_without_a_place(look: Look) -> None:
    (nic,) = look(Machine("rxe", (), software_rdma=("rxe0",))).nics
    assert (nic.name, nic.pci, nic.rdma) == ("rxe0", None, True)


@pytest.mark.parametrize("exists", [True, False], ids=["empty", "missing"])
def test_a_container_without_sys_is_said_to_be_one(tmp_path: Path, exists: bool) -> None:
    topology = scan(tmp_path if exists else tmp_path / "sys", [2, 3])
    assert not topology.gpus
    assert not topology.nics
    assert topology.allowed_cores() == (Core((2,), -1), Core((3,), -1))
    assert any("no PCI devices" in problem for problem in topology.problems)
    assert any("no CPUs" in problem for problem in topology.problems)


def test_a_hidden_file_costs_one_fact_and_not_the_scan(tmp_path: Path) -> None:
    tree = machines.hgx_4_nics().write(tmp_path)
    gpu = tree / "bus/pci/devices/0000:23:00.0"
    (gpu / "numa_node").unlink()
    (gpu / "local_cpulist").unlink()
    (tree / "class/infiniband/mlx5_0/ports/1/rate").unlink()
    topology = scan(tree, [0])
    assert (topology.gpus[0].pci.numa, topology.gpus[0].pci.local_cpus) == (None, frozenset())
    assert next(nic for nic in topology.nics if nic.name == "mlx5_0").gbps == 0


def test_only_threads_on_which_we_may_run_are_offered(look: Look) -> None:
    topology = replace(look(machines.p5()), allowed=frozenset({5, 101, 7}))
    assert topology.allowed_cores() == (Core((5, 101), 0), Core((7,), 0))


def test_our_own_machine_can_be_read() -> None:
    assert scan().allowed_cores()


@pytest.mark.parametrize("text", ["0000:53:00.0", "00000000:53:00.0", "0000:53:00.0".upper()])
def test_nvml_cuda_and_sysfs_mean_the_same_gpu(text: str) -> None:
    assert pci_address(text) == "0000:53:00.0"


@pytest.mark.parametrize("text", ["0-3,8,10-11", "5", ""])
def test_cpu_lists_are_read_and_written(text: str) -> None:
    assert format_cpulist(parse_cpulist(text)) == (text or "none")
