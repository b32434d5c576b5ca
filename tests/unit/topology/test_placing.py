"""What an engine is opened with: the profile, the machine and what the user said, joined."""

import pytest

from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import ProviderInfo
from sglang_pd_fabric.fabric.placing import MAX_NICS, Plan, Rank, Said, plan_engine
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.fabric.topology import OverrideError, Topology
from sglang_pd_fabric.fabric.topology.cpulist import format_cpulist
from sglang_pd_fabric.fabric.topology.interfaces import Interfaces, is_local_address, read_interfaces

from . import machines
from .conftest import Look

HOST = Interfaces(
    {
        "lo": ("127.0.0.1",),
        "eth0": ("10.0.0.5", "fd00::5"),
        "eth1": ("10.0.1.5",),
        "usb0": (),
        "six": ("fd00::6",),
    },
    {"127.0.0.1", "127.0.0.2", "10.0.0.5", "10.0.1.5", "fd00::5", "fd00::6"}.__contains__,
)
CPU_RANK = Rank()
NICS, CPUS = "SGLANG_PD_FABRIC_NICS", "SGLANG_PD_FABRIC_CPUS"


def plan(
    topology: Topology,
    provider: str,
    rank: Rank = CPU_RANK,
    nics: str = "",
    host: str = "10.0.0.5",
    cpus: str = "auto",
    interfaces: Interfaces = HOST,
) -> Plan:
    """With every RDMA device of the machine offered by libfabric."""
    profile = PROFILES[provider]
    found = [
        ProviderInfo(profile.provider, profile.fabric, profile.domain(nic.name))
        for nic in topology.nics
        if nic.rdma and (nic.driver == "efa") == (profile.device_driver == "efa")
    ]
    return plan_engine(
        profile,
        found,
        topology,
        interfaces,
        rank,
        nics=Said(NICS, nics),
        host=Said("the host", host),
        cpus=Said(CPUS, cpus),
    )


def domains(plan: Plan) -> list[str | None]:
    return [nic.domain for nic in plan.nics]


def sources(plan: Plan) -> list[str | None]:
    return [nic.source for nic in plan.nics]


@pytest.fixture
def p5(look: Look) -> Topology:
    return look(machines.p5())


@pytest.fixture
def dgx(look: Look) -> Topology:
    return look(machines.dgx_h100())


@pytest.fixture
def laptop(look: Look) -> Topology:
    return look(machines.laptop())


# -- NICs ---------------------------------------------------------------------------------------------


def test_a_gpu_gets_its_own_efa_devices_by_libfabrics_names(p5: Topology) -> None:
    plans = {gpu.address: plan(p5, "efa", Rank(gpu.address)) for gpu in p5.gpus}
    everything = [domain for one in plans.values() for domain in domains(one)]
    assert len(everything) == len(set(everything)) == 32
    assert all(str(domain).startswith("rdmap") and str(domain).endswith("-rdm") for domain in everything)
    assert all(len(one.nics) == 4 for one in plans.values())
    assert all("same PCIe switch" in nic.reason for one in plans.values() for nic in one.nics)
    assert all(set(sources(one)) == {None} for one in plans.values())


def test_a_gpu_gets_its_connectx_by_the_device_name(dgx: Topology) -> None:
    first = plan(dgx, "verbs", Rank("0000:1b:00.0"))
    assert domains(first) == ["mlx5_0"]
    # As NVML and CUDA write it.
    assert plan(dgx, "verbs", Rank("00000000:1B:00.0")) == first


def test_named_nics_are_taken_and_say_who_named_them(dgx: Topology) -> None:
    named = plan(dgx, "verbs", Rank("0000:1b:00.0"), nics="mlx5_1")
    assert domains(named) == ["mlx5_1"]
    assert NICS in named.nics[0].reason
    mapping = '{"0": "mlx5_0", "3": "mlx5_4,mlx5_5"}'
    assert domains(plan(dgx, "verbs", Rank("0000:1b:00.0", 3), nics=mapping)) == ["mlx5_4", "mlx5_5"]


def test_an_engine_on_the_cpu_of_a_machine_with_many_nics_takes_as_many_as_it_can(p5: Topology) -> None:
    assert len(plan(p5, "efa").nics) == MAX_NICS


@pytest.mark.parametrize(
    ("provider", "nics", "what"),
    [
        ("verbs", "mlx5_77", "there is no mlx5_77. RDMA devices here: mlx5_0, mlx5_1"),
        ("verbs", '{"1": "mlx5_0"}', "no entry for GPU 0, only for 1"),
        ("efa", "mlx5_0", "mlx5_0 cannot be used: libfabric does not offer it"),
        ("verbs", '{"0": "' + ",".join(f"mlx5_{n}" for n in range(9)) + '"}', "at most 8 NICs"),
        (
            "tcp",
            "mlx5_0",
            "there is no interface mlx5_0, and it is no IP address. Interfaces here: lo (127.0.0.1)",
        ),
        ("shm", "eth0", "provider shm has no NICs"),
    ],
)
def test_what_was_named_and_is_not_there_is_refused(
    dgx: Topology, provider: str, nics: str, what: str
) -> None:
    with pytest.raises(OverrideError) as caught:
        plan(dgx, provider, Rank("0000:1b:00.0"), nics=nics)
    assert str(caught.value).startswith(f"{NICS}={nics}: ")
    assert what in str(caught.value)


def test_a_gpu_without_any_nic_is_told_which_were_left_out_and_why(look: Look) -> None:
    with pytest.raises(FabricError, match=r"no NIC of verbs for cpu; left out are:\n  - ") as caught:
        plan(look(machines.laptop()), "verbs")
    assert "SGLANG_PD_FABRIC_NICS" in str(caught.value)


# -- tcp ----------------------------------------------------------------------------------------------


def test_tcp_binds_to_the_host_and_nothing_else(laptop: Topology) -> None:
    assert sources(plan(laptop, "tcp")) == ["10.0.0.5"]
    assert domains(plan(laptop, "tcp")) == [None]


@pytest.mark.parametrize(
    ("nics", "bound"),
    [
        ("127.0.0.1,127.0.0.2", ["127.0.0.1", "127.0.0.2"]),
        ("eth0", ["10.0.0.5"]),
        ("eth1, eth0 ,", ["10.0.1.5", "10.0.0.5"]),
        ("eth0,10.0.0.5", ["10.0.0.5"]),
        ("fd00::5", ["fd00::5"]),
        ("six,fd00::5", ["fd00::6", "fd00::5"]),
        ('{"0": "eth0", "1": "eth1"}', ["10.0.0.5"]),
    ],
)
def test_tcp_nics_are_local_addresses_or_interfaces(laptop: Topology, nics: str, bound: list[str]) -> None:
    assert sources(plan(laptop, "tcp", nics=nics, host="10.9.9.9")) == bound


@pytest.mark.parametrize(
    ("nics", "what"),
    [
        ("10.9.9.9", "10.9.9.9 is no address of this machine"),
        ("eth7", "there is no interface eth7"),
        ("usb0", "usb0 has no IP address"),
        ("0.0.0.0", "peers cannot be told to connect to 0.0.0.0"),
        ("::", "peers cannot be told to connect to ::"),
        ("224.0.0.1", "peers cannot be told to connect to 224.0.0.1"),
        ("eth0,six", "IPv4 and IPv6 do not mix"),
        (",", "no NIC is named"),
    ],
)
def test_an_address_that_is_not_ours_is_refused_with_what_there_is(
    laptop: Topology, nics: str, what: str
) -> None:
    with pytest.raises(OverrideError) as caught:
        plan(laptop, "tcp", nics=nics)
    assert str(caught.value).startswith(f"{NICS}={nics}: {what}")
    if "mix" not in what:
        assert "lo (127.0.0.1), eth0 (10.0.0.5, fd00::5)" in str(caught.value)
        assert "usb0 (no address)" in str(caught.value)


def test_a_host_that_is_not_ours_is_refused_the_same_way(laptop: Topology) -> None:
    with pytest.raises(
        OverrideError, match=r"the host=10\.9\.9\.9: 10\.9\.9\.9 is no address of this machine"
    ):
        plan(laptop, "tcp", host="10.9.9.9")


def test_more_addresses_than_an_engine_has_nics_are_refused(laptop: Topology) -> None:
    everywhere = Interfaces({}, lambda _address: True)
    many = ",".join(f"127.0.0.{1 + number}" for number in range(MAX_NICS + 1))
    with pytest.raises(OverrideError, match="at most 8 NICs"):
        plan(laptop, "tcp", nics=many, interfaces=everywhere)


def test_this_machines_interfaces_are_found() -> None:
    here = read_interfaces()
    assert here.addresses["lo"][0] == "127.0.0.1"
    assert here.address_of("lo") == "127.0.0.1"
    assert (here.holder("127.0.0.1"), here.holder("127.0.0.9")) == ("lo", "")
    assert is_local_address("127.0.0.9")
    assert not is_local_address("192.0.2.77")
    assert not is_local_address("127.255.255.255"), "a broadcast address"
    assert not is_local_address("eth0")


# -- CPUs ---------------------------------------------------------------------------------------------


def test_engines_of_different_gpus_run_on_different_cores_near_their_nics(dgx: Topology) -> None:
    plans = [plan(dgx, "verbs", Rank(gpu.address)) for gpu in dgx.gpus]
    taken: set[int] = set()
    for gpu, one in zip(dgx.gpus, plans, strict=True):
        assert one.cpus
        assert not taken & set(one.cpus)
        assert set(one.cpus) <= gpu.pci.local_cpus
        assert "near" in one.cpus_reason
        taken |= set(one.cpus)


def test_a_tcp_engine_on_the_cpu_runs_near_its_interface(dgx: Topology) -> None:
    nic = next(nic for nic in dgx.nics if nic.netdevs and nic.pci and nic.pci.local_cpus)
    assert nic.pci
    host = Interfaces({nic.netdevs[0]: ("10.0.0.5",)}, lambda _address: True)
    cpus_only = Topology(dgx.source, (), dgx.nics, dgx.cores, dgx.allowed)
    assert set(plan(cpus_only, "tcp", interfaces=host).cpus) == nic.pci.local_cpus


def allowing(topology: Topology, cpus: set[int]) -> Topology:
    return Topology(topology.source, topology.gpus, topology.nics, topology.cores, frozenset(cpus))


def test_a_cpu_that_is_not_allowed_is_never_taken(dgx: Topology) -> None:
    some = set(sorted(dgx.allowed)[::3])
    for gpu in dgx.gpus:
        assert set(plan(allowing(dgx, some), "verbs", Rank(gpu.address)).cpus) <= some


@pytest.mark.parametrize(
    ("allowed", "why"), [({0, 1}, "only 2 CPUs are allowed"), ({0, 1, 2, 3}, "only 4 CPUs are allowed")]
)
def test_on_few_cpus_nothing_is_pinned_and_the_reason_is_given(
    laptop: Topology, allowed: set[int], why: str
) -> None:
    few = plan(allowing(laptop, allowed), "tcp")
    assert few.cpus == ()
    assert why in few.cpus_reason


def test_where_no_cpu_is_nearer_nothing_is_pinned(laptop: Topology) -> None:
    assert len(laptop.allowed) > 4
    assert plan(laptop, "tcp").cpus == ()
    assert "no allowed CPU is nearer" in plan(laptop, "tcp").cpus_reason


def test_the_setting_forces_or_forbids_it(dgx: Topology) -> None:
    rank = Rank("0000:1b:00.0")
    assert plan(dgx, "verbs", rank, cpus="none").cpus == ()
    assert plan(dgx, "verbs", rank, cpus="5,2-3").cpus == (2, 3, 5)
    assert plan(allowing(dgx, {0, 1}), "tcp", cpus="1").cpus == (1,)


@pytest.mark.parametrize(
    ("cpus", "what"),
    [
        ("near", "auto, none, or a list like 4-7,12"),
        (",", "no CPU is named"),
        ("0,5000-5001", "CPUs 5000-5001 are not allowed"),
    ],
)
def test_wrong_cpus_are_refused_with_the_allowed_ones(dgx: Topology, cpus: str, what: str) -> None:
    with pytest.raises(OverrideError) as caught:
        plan(dgx, "verbs", Rank("0000:1b:00.0"), cpus=cpus)
    assert str(caught.value).startswith(f"{CPUS}={cpus}: {what}")
    assert f"This process may run on {format_cpulist(dgx.allowed)}" in str(caught.value)
