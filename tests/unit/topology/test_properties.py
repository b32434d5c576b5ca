"""What holds on every machine, whatever it looks like."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.fabric.topology import Core, Gpu, Nic, Topology, assign
from sglang_pd_fabric.fabric.topology.cpulist import format_cpulist, parse_cpulist
from sglang_pd_fabric.fabric.topology.model import PciDevice, Port, distance

CORES = tuple(Core((cpu, cpu + 16), cpu // 8) for cpu in range(16))
EVERY_CPU = frozenset(range(32))


@st.composite
def places(draw: st.DrawFn, index: int, vendor: str, models: tuple[str, ...]) -> PciDevice:
    """A function somewhere on a tree of a few host bridges and switches."""
    bridges = [f"pci0000:{draw(st.sampled_from('0123'))}0"]
    for depth in range(draw(st.integers(0, 3))):
        bridges.append(f"{bridges[-1][-5:]}/{depth}.{draw(st.integers(0, 1))}")
    address = f"{draw(st.sampled_from(['0000', '0001']))}:{index:02x}:00.0"
    numa = draw(st.sampled_from([None, 0, 1]))
    local = (
        frozenset(range(numa * 8, numa * 8 + 8)) if numa is not None and draw(st.booleans()) else frozenset()
    )
    return PciDevice(address, (*bridges, address), vendor, draw(st.sampled_from(models)), numa, local)


@st.composite
def nics(draw: st.DrawFn, index: int) -> Nic:
    port = Port(
        1,
        draw(st.sampled_from(["ACTIVE", "ACTIVE", "ACTIVE", "DOWN"])),
        draw(st.sampled_from([0, 100, 400])),
        draw(st.sampled_from(["InfiniBand", "InfiniBand", "Ethernet"])),
    )
    pci = draw(places(index, "15b3", ("1021", "1021", "101d")))
    rdma = draw(st.sampled_from([True, True, True, False]))
    return Nic(f"mlx5_{index}", pci, "mlx5_core", rdma, (port,) if rdma else ())


@st.composite
def topologies(draw: st.DrawFn, most_gpus: int = 8) -> Topology:
    gpus = [Gpu(draw(places(index, "10de", ("2330",)))) for index in range(draw(st.integers(0, most_gpus)))]
    found = [draw(nics(index)) for index in range(0x80, 0x80 + draw(st.integers(0, 10)))]
    allowed = draw(st.just(EVERY_CPU) | st.frozensets(st.sampled_from(sorted(EVERY_CPU)), min_size=1))
    return Topology("drawn", tuple(gpus), tuple(found), CORES, allowed)


@given(topologies())
def test_each_nic_is_used_or_left_out_with_a_reason(topology: Topology) -> None:
    assignment = assign(topology)
    used = {use.nic for placement in assignment.placements for use in placement.nics}
    left_out = {entry.nic for entry in assignment.left_out}
    assert used | left_out == set(topology.nics)
    assert not used & left_out
    assert all(entry.reason for entry in assignment.left_out)


@given(topologies())
def test_no_gpu_is_without_a_nic_where_one_is_usable(topology: Topology) -> None:
    usable = any(nic.rdma and nic.gbps for nic in topology.nics)
    if usable:
        assert all(placement.nics for placement in assign(topology).placements)


@given(topologies())
def test_every_gpu_has_a_placement(topology: Topology) -> None:
    addresses = [placement.address for placement in assign(topology).placements]
    assert addresses == (sorted(gpu.address for gpu in topology.gpus) or ["cpu"])


@given(topologies(), st.randoms(use_true_random=False))
def test_the_order_in_which_devices_are_found_does_not_matter(
    topology: Topology, draw: random.Random
) -> None:
    other = replace(
        topology,
        gpus=tuple(draw.sample(topology.gpus, len(topology.gpus))),
        nics=tuple(draw.sample(topology.nics, len(topology.nics))),
        cores=tuple(draw.sample(topology.cores, len(topology.cores))),
    )
    one, two = assign(topology), assign(other)
    assert (one.placements, one.left_out, one.notes) == (two.placements, two.left_out, two.notes)


@given(topologies())
def test_a_nic_that_one_gpu_has_alone_is_nowhere_nearer(topology: Topology) -> None:
    assignment = assign(topology)
    users = Counter(use.nic for placement in assignment.placements for use in placement.nics)
    for placement in assignment.placements:
        for use in placement.nics:
            if placement.gpu and users[use.nic] == 1 and use.nic.pci:
                own = distance(placement.gpu.pci, use.nic.pci)
                assert own == min(distance(gpu.pci, use.nic.pci) for gpu in topology.gpus)


@given(st.integers(1, 8), st.integers(0, 40))
def test_equally_near_nics_are_divided_evenly(gpus: int, count: int) -> None:
    def place(kind: str, index: int) -> PciDevice:
        address = f"0000:{kind}{index:02x}:00.0"
        return PciDevice(address, ("pci0000:00", address), kind, "1", 0, frozenset())

    port = Port(1, "ACTIVE", 400, "InfiniBand")
    topology = Topology(
        "flat",
        tuple(Gpu(place("a", index)) for index in range(gpus)),
        tuple(Nic(f"n{index}", place("b", index), "", True, (port,)) for index in range(count)),
    )
    assignment = assign(topology)
    per_gpu = [len(placement.nics) for placement in assignment.placements]
    per_nic = Counter(use.nic for placement in assignment.placements for use in placement.nics)
    assert max(per_gpu) - min(per_gpu) <= 1
    assert len(per_nic) == count
    assert max(per_nic.values(), default=0) - min(per_nic.values(), default=0) <= 1


@given(topologies())
def test_every_gpu_has_cores_on_which_it_may_run(topology: Topology) -> None:
    for placement in assign(topology).placements:
        assert placement.cores
        assert all(topology.allowed.issuperset(core.cpus) for core in placement.cores)


@given(topologies(most_gpus=16))
def test_cores_are_shared_only_where_there_are_too_few(topology: Topology) -> None:
    anywhere = tuple(Gpu(replace(gpu.pci, numa=None, local_cpus=frozenset())) for gpu in topology.gpus)
    assignment = assign(replace(topology, gpus=anywhere, nics=()))
    users = Counter(core for placement in assignment.placements for core in placement.cores)
    too_few = len(assignment.placements) > len(topology.allowed_cores())
    assert (max(users.values()) > 1) == too_few


@given(topologies())
def test_the_same_machine_gives_the_same_answer(topology: Topology) -> None:
    assert assign(topology) == assign(topology)


@given(st.frozensets(st.integers(0, 300)))
def test_cpu_lists_survive_a_round_trip(cpus: frozenset[int]) -> None:
    assert parse_cpulist(format_cpulist(cpus).replace("none", "")) == cpus
