"""The rules, one small machine for each."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from sglang_pd_fabric.fabric.topology import Core, Topology, assign
from sglang_pd_fabric.fabric.topology.model import Distance, Level, distance

from . import machines
from .conftest import Look, nics_of, reasons_of
from .machines import CX6_DX, CX7, CX7_IB, CX_VF, H100
from .trees import Function, Machine


def gpu(path: str, numa: int = 0) -> Function:
    return Function(path, H100, numa)


def nic(path: str, number: int, numa: int = 0, ids: str = CX7_IB, **more: object) -> Function:
    return replace(Function(path, ids, numa, rdma=(f"mlx5_{number}",)), **more)  # type: ignore[arg-type]


def machine(*functions: Function) -> Machine:
    return Machine("small", functions, ("0-3", "4-7"))


SWITCH = "pci0000:10/0000:10:01.0/0000:11:00.0"
ELSEWHERE = "pci0000:30/0000:30:01.0"
OTHER_SOCKET = "pci0000:90/0000:90:01.0"


def test_a_switch_is_nearer_than_a_host_bridge_than_a_numa_node_than_the_rest(look: Look) -> None:
    topology = look(
        machine(
            gpu(f"{SWITCH}/0000:12:00.0/0000:13:00.0"),
            nic(f"{SWITCH}/0000:12:01.0/0000:14:00.0", 0),
            nic("pci0000:10/0000:10:02.0/0000:20:00.0", 1),
            nic(f"{ELSEWHERE}/0000:31:00.0", 2),
            nic(f"{OTHER_SOCKET}/0000:91:00.0", 3, numa=1),
        )
    )
    places = {nic.name: nic.pci for nic in topology.nics}
    found = [distance(topology.gpus[0].pci, place) for _, place in sorted(places.items()) if place]
    assert [one.level for one in found] == [Level.BRIDGE, Level.HOST_BRIDGE, Level.NUMA, Level.FAR]
    assert found == sorted(found)
    assert found[0].bridge == "0000:11:00.0"


def test_in_a_cascade_of_switches_the_deeper_common_one_is_nearer(look: Look) -> None:
    inner = f"{SWITCH}/0000:12:00.0/0000:13:00.0"
    topology = look(
        machine(
            gpu(f"{inner}/0000:14:00.0/0000:25:00.0"),
            gpu(f"{SWITCH}/0000:12:01.0/0000:17:00.0"),
            nic(f"{inner}/0000:14:01.0/0000:26:00.0", 0),
            nic(f"{SWITCH}/0000:12:02.0/0000:18:00.0", 1),
        )
    )
    assert nics_of(assign(topology)) == {"0000:17:00.0": ("mlx5_1",), "0000:25:00.0": ("mlx5_0",)}


def test_two_unknown_numa_nodes_are_not_the_same_one() -> None:
    assert Distance(Level.NUMA) < Distance(Level.FAR)


def test_unknown_numa_nodes_do_not_bring_devices_together(look: Look) -> None:
    topology = look(machine(gpu(f"{SWITCH}/0000:12:00.0", -1), nic(f"{ELSEWHERE}/0000:31:00.0", 0, -1)))
    place = topology.nics[0].pci
    assert place is not None
    assert distance(topology.gpus[0].pci, place).level is Level.FAR
    assert nics_of(assign(topology)) == {"0000:12:00.0": ("mlx5_0",)}


def test_a_surplus_nic_is_not_dropped(look: Look) -> None:
    topology = look(
        machine(
            *(gpu(f"{SWITCH}/0000:12:0{i}.0/0000:2{i}:00.0") for i in range(2)),
            *(nic(f"{SWITCH}/0000:12:1{i}.0/0000:3{i}:00.0", i) for i in range(3)),
        )
    )
    assert list(nics_of(assign(topology)).values()) == [("mlx5_0", "mlx5_1"), ("mlx5_2",)]


def test_a_nic_that_is_far_from_all_goes_to_the_gpu_that_has_none(look: Look) -> None:
    topology = look(
        machine(
            gpu(f"{SWITCH}/0000:12:00.0/0000:13:00.0"),
            nic(f"{SWITCH}/0000:12:01.0/0000:14:00.0", 0),
            gpu("pci0000:20/0000:20:01.0/0000:21:00.0"),
            nic(f"{ELSEWHERE}/0000:31:00.0", 1),
        )
    )
    assert nics_of(assign(topology)) == {"0000:13:00.0": ("mlx5_0",), "0000:21:00.0": ("mlx5_1",)}


def test_gpus_of_a_socket_without_nics_share_those_of_the_other_evenly(look: Look) -> None:
    topology = look(
        machine(
            *(gpu(f"{SWITCH}/0000:12:0{i}.0/0000:2{i}:00.0") for i in range(2)),
            *(nic(f"{SWITCH}/0000:12:1{i}.0/0000:3{i}:00.0", i) for i in range(2)),
            *(gpu(f"pci0000:9{i}/0000:9{i}:01.0/0000:a{i}:00.0", 1) for i in range(2)),
        )
    )
    assert list(nics_of(assign(topology)).values()) == [("mlx5_0",), ("mlx5_1",), ("mlx5_0",), ("mlx5_1",)]


def small_with(look: Look, **more: object) -> Topology:
    """A GPU with two NICs beside it, the second of which is special."""
    return look(
        machine(
            gpu(f"{SWITCH}/0000:12:00.0/0000:13:00.0"),
            nic(f"{SWITCH}/0000:12:01.0/0000:14:00.0", 0),
            replace(nic(f"{SWITCH}/0000:12:02.0/0000:15:00.0", 1), **more),  # type: ignore[arg-type]
        )
    )


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED"])
def test_a_nic_whose_port_is_not_active_is_left_out(look: Look, state: str) -> None:
    assignment = assign(small_with(look, port=(state, "10 Gb/sec (4X SDR)", "InfiniBand")))
    assert reasons_of(assignment) == {"mlx5_1": f"port 1 is {state.partition(': ')[2]}"}


def test_a_nic_without_rdma_is_left_out_with_its_driver(look: Look) -> None:
    assignment = assign(small_with(look, rdma=(), netdevs=("eth0",), driver="vfio-pci"))
    assert reasons_of(assignment) == {"eth0": "no RDMA device (driver vfio-pci)"}


def test_infiniband_and_ethernet_of_one_model_are_two_fabrics(look: Look) -> None:
    assignment = assign(small_with(look, port=("4: ACTIVE", "100 Gb/sec (4X EDR)", "Ethernet")))
    assert list(reasons_of(assignment)) == ["mlx5_1"]
    assert "front-end" in reasons_of(assignment)["mlx5_1"]


def test_a_virtual_function_is_left_out_where_its_physical_one_is_used(look: Look) -> None:
    assignment = assign(small_with(look, ids=CX_VF, physfn="0000:14:00.0"))
    assert reasons_of(assignment) == {"mlx5_1": "virtual function of 0000:14:00.0, which is here itself"}


def test_a_second_rdma_device_of_one_pci_function_is_left_out(look: Look) -> None:
    assignment = assign(small_with(look, rdma=("mlx5_1", "smi1")))
    assert reasons_of(assignment) == {"smi1": "another RDMA device of 0000:15:00.0, which is used already"}


def test_a_nic_that_libfabric_does_not_offer_is_left_out(look: Look) -> None:
    assignment = assign(small_with(look), openable={"mlx5_0"})
    assert list(reasons_of(assignment)) == ["mlx5_1"]
    assert "/dev/infiniband" in reasons_of(assignment)["mlx5_1"]


def test_rdma_in_software_is_used_only_when_named(look: Look) -> None:
    topology = look(Machine("rxe", (gpu(f"{SWITCH}/0000:13:00.0"),), software_rdma=("rxe0",)))
    assert nics_of(assign(topology)) == {"0000:13:00.0": ()}
    assert nics_of(assign(topology, only=["rxe0"])) == {"0000:13:00.0": ("rxe0",)}


def test_the_fabric_is_the_model_beside_the_gpus_even_if_others_are_faster(look: Look) -> None:
    topology = look(
        machine(
            gpu(f"{SWITCH}/0000:12:00.0/0000:13:00.0"),
            nic(f"{SWITCH}/0000:12:01.0/0000:14:00.0", 0, port=("4: ACTIVE", "100 Gb/sec (4X EDR)", "")),
            *(nic(f"{ELSEWHERE}/0000:31:00.{i}", i, ids=CX6_DX) for i in range(1, 5)),
        )
    )
    assert nics_of(assign(topology)) == {"0000:13:00.0": ("mlx5_0",)}


def test_the_fabric_is_the_faster_model_where_place_does_not_tell(look: Look) -> None:
    slow = ("4: ACTIVE", "25 Gb/sec (1X EDR)", "Ethernet")
    topology = look(
        machine(
            gpu("pci0000:00/0000:00:02.0"),
            *(nic(f"pci0000:00/0000:00:1{i}.0", i, ids=CX6_DX, port=slow) for i in range(3)),
            nic("pci0000:00/0000:00:20.0", 3, ids=CX7),
        )
    )
    assert nics_of(assign(topology)) == {"0000:00:02.0": ("mlx5_3",)}


def test_a_mig_instance_has_the_nics_of_its_gpu(look: Look) -> None:
    # CUDA names all instances of one GPU by the GPU's PCI address, NVML pads its domain.
    assignment = assign(look(machines.p5()))
    assert assignment.placement("00000000:53:00.0") == assignment.placement("0000:53:00.0")


def test_a_gpu_that_sysfs_does_not_show_is_served_by_all_nics(look: Look) -> None:
    placement = assign(look(machines.hgx_4_nics())).placement("0000:ff:00.0")
    assert placement.nic_names == ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3")
    assert "0000:ff:00.0 is not in" in placement.nics[0].reason


def test_the_cpu_of_a_gpu_host_is_served_by_all_nics(look: Look) -> None:
    placement = assign(look(machines.hgx_4_nics())).placement(None)
    assert placement.gpu is None
    assert len(placement.nics) == 4


def allow(topology: Topology, cpus: Iterable[int]) -> Topology:
    return replace(topology, allowed=frozenset(cpus))


@pytest.mark.parametrize(
    ("cpus", "nics"),
    [(range(16), ("mlx5_0",)), (range(16, 32), ("mlx5_1",)), (range(64), ("mlx5_0", "mlx5_1"))],
    ids=["node-0", "node-1", "both"],
)
def test_a_cpu_host_uses_the_nics_of_the_numa_nodes_it_may_run_on(
    look: Look, cpus: range, nics: tuple[str, ...]
) -> None:
    assignment = assign(allow(look(machines.cpu_host()), cpus))
    assert nics_of(assignment) == {"cpu": nics}
    assert len(nics) + len(assignment.left_out) == 2


def test_a_cpu_host_whose_own_node_has_no_nic_uses_the_others(look: Look) -> None:
    topology = look(machine(nic(f"{OTHER_SOCKET}/0000:91:00.0", 0, numa=1)))
    assert nics_of(assign(allow(topology, {0, 1}))) == {"cpu": ("mlx5_0",)}


def test_cores_stay_in_the_cpuset(look: Look) -> None:
    topology = allow(look(machines.p5()), [*range(8), *range(96, 104)])
    placements = assign(topology).placements
    cores = [core for placement in placements for core in placement.cores]
    assert sorted(cores) == [Core((cpu, cpu + 96), 0) for cpu in range(8)]
    assert "none of CPUs 48-95,144-191" in placements[4].cores_reason


def test_too_few_cores_are_shared_and_that_is_said(look: Look) -> None:
    placements = assign(allow(look(machines.p5()), {4, 5})).placements
    assert all(len(placement.cores) == 1 for placement in placements)
    assert "some are shared" in placements[0].cores_reason


def test_a_gpu_that_may_be_anywhere_leaves_the_near_cores_to_the_one_that_needs_them(look: Look) -> None:
    topology = look(machine(gpu("pci0000:10/0000:10:01.0", -1), gpu("pci0000:20/0000:20:01.0", 0)))
    anywhere, near = (placement.cores for placement in assign(topology).placements)
    assert [core.numa for core in near] == [0] * 4
    assert [core.numa for core in anywhere] == [1] * 4


def test_cpu_0_is_taken_last(look: Look) -> None:
    first = assign(look(machines.p5())).placements[0].cores
    assert first[0].cpus == (1, 97)
    assert first[-1].cpus == (0, 96)
