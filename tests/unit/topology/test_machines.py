"""Which NICs and cores each GPU gets on the machines that people have."""

import pytest

from sglang_pd_fabric.fabric.topology import assign

from . import machines
from .conftest import Look, nics_of, nics_per_gpu, reasons_of
from .trees import Machine

every_gpu_machine = pytest.mark.parametrize(
    "machine", machines.GPU_MACHINES, ids=lambda machine: machine.name
)


def test_every_gpu_of_a_p5_gets_its_four_nearest_nics(look: Look) -> None:
    # The whole table is what abcdabcd987/libfabric-efa-demo printed on a real p5.48xlarge.
    first = {"53": 79, "64": 96, "75": 113, "86": 130, "97": 147, "a8": 164, "b9": 181, "ca": 198}
    assert nics_of(assign(look(machines.p5()))) == {
        f"0000:{bus}:00.0": tuple(f"rdmap{number + index}s0" for index in range(4))
        for bus, number in first.items()
    }


def test_numa_nodes_are_not_needed_where_the_pcie_tree_says_it_all(look: Look) -> None:
    without = nics_of(assign(look(machines.p5_without_numa())))
    assert without == nics_of(assign(look(machines.p5())))


def test_two_gpus_of_a_p5en_divide_the_four_nics_of_their_switch(look: Look) -> None:
    nics = nics_of(assign(look(machines.p5en())))
    assert nics["0000:59:00.0"] == ("rdmap85s0", "rdmap86s0")
    assert nics["0000:5a:00.0"] == ("rdmap87s0", "rdmap88s0")


def test_each_gpu_of_a_p6_b200_has_a_nic_of_its_own(look: Look) -> None:
    nics = nics_of(assign(look(machines.p6_b200())))
    assert nics["0000:51:00.0"] == ("rdmap79s0",)
    assert nics["0000:52:00.0"] == ("rdmap80s0",)


def test_two_gpus_of_a_p4d_share_the_nic_of_their_host_bridge(look: Look) -> None:
    assignment = assign(look(machines.p4d()))
    nics = nics_of(assignment)
    assert nics["0000:90:1c.0"] == nics["0000:90:1d.0"] == ("rdmap144s27",)
    reason = assignment.placement("0000:90:1c.0").nics[0].reason
    assert reason == "same host bridge pci0000:90, shared with 0000:90:1d.0"


def test_gpus_of_a_dgx_h100_get_the_nics_of_nvidias_table(look: Look) -> None:
    numbers = [0, 3, 4, 5, 6, 9, 10, 11]
    nics = nics_of(assign(look(machines.dgx_h100())))
    assert list(nics.values()) == [(f"mlx5_{number}",) for number in numbers]


def test_storage_nics_of_the_same_model_are_left_out_for_their_place(look: Look) -> None:
    reasons = reasons_of(assign(look(machines.dgx_h100())))
    assert set(reasons) == {"mlx5_1", "mlx5_2", "mlx5_7", "mlx5_8"}
    assert all("beside no GPU" in reason for reason in reasons.values())


def test_ethernet_nics_right_beside_a_gpu_are_left_out_for_their_model(look: Look) -> None:
    reasons = reasons_of(assign(look(machines.hgx_h100_ethernet_front_end())))
    assert reasons.pop("eno1") == "no RDMA device (driver igb)"
    assert set(reasons) == {"mlx5_1", "mlx5_2", "mlx5_7", "mlx5_8"}
    assert all(
        "15b3:101d (Ethernet)" in reason and "8 x 15b3:1021 (InfiniBand)" in reason
        for reason in reasons.values()
    )


def test_four_nics_serve_eight_gpus_two_each(look: Look) -> None:
    nics = nics_of(assign(look(machines.hgx_4_nics())))
    assert list(nics.values()) == [(f"mlx5_{index // 2}",) for index in range(8)]


def test_a_vm_with_everything_on_one_host_bridge_pairs_in_order(look: Look) -> None:
    nics = nics_of(assign(look(machines.vm())))
    assert list(nics.values()) == [(f"mlx5_{index}",) for index in range(4)]


@pytest.mark.parametrize(
    ("machine", "count"),
    [(machines.p4d(), 1), (machines.p5(), 4), (machines.p5en(), 2), (machines.p6_b200(), 1)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_all_gpus_of_an_instance_have_equally_many_nics(look: Look, machine: Machine, count: int) -> None:
    assert nics_per_gpu(look(machine)) == [count] * 8


def test_ec2s_ordinary_interfaces_are_left_out_because_they_have_no_rdma(look: Look) -> None:
    reasons = reasons_of(assign(look(machines.p5en())))
    assert len(reasons) == 16
    assert set(reasons.values()) == {"no RDMA device (driver ena)"}


@every_gpu_machine
def test_cores_are_near_the_nic_and_no_two_gpus_share_one(look: Look, machine: Machine) -> None:
    assignment = assign(look(machine))
    cores = [core for placement in assignment.placements for core in placement.cores]
    assert len(cores) == len(set(cores)) == len(look(machine).cores)
    for placement in assignment.placements:
        pci = placement.nics[0].nic.pci
        assert pci is not None
        assert all(pci.local_cpus.issuperset(core.cpus) for core in placement.cores)


@every_gpu_machine
def test_every_choice_has_its_reason(look: Look, machine: Machine) -> None:
    assignment = assign(look(machine))
    assert all(use.reason for placement in assignment.placements for use in placement.nics)
    assert all(placement.cores_reason for placement in assignment.placements)
    assert all(entry.reason for entry in assignment.left_out)


def test_a_laptop_has_tcp_and_shm_and_cores(look: Look) -> None:
    assignment = assign(look(machines.laptop()))
    (placement,) = assignment.placements
    assert placement.gpu is None
    assert placement.nics == ()
    assert len(placement.cores) == 4
    assert any("only libfabric's tcp and shm" in note for note in assignment.notes)
    assert any("no NVIDIA GPU" in note for note in assignment.notes)
