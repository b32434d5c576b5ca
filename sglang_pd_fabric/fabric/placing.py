"""Which NICs an engine opens and on which CPUs its I/O thread runs: profile, machine and user joined.

Pure: what the machine has and what the user said come in, what ``Engine`` is opened with comes out, each with
its reason. What a user said is checked here, before anything is allocated.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sglang_pd_fabric.fabric._core import lib
from sglang_pd_fabric.fabric.availability import offered
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import ProviderInfo
from sglang_pd_fabric.fabric.profiles import Profile
from sglang_pd_fabric.fabric.topology import (
    OverrideError,
    Placement,
    Topology,
    assign,
    parse_override,
    placement_for,
)
from sglang_pd_fabric.fabric.topology.assign import CPU
from sglang_pd_fabric.fabric.topology.cores import Cores, divide_cores
from sglang_pd_fabric.fabric.topology.cpulist import format_cpulist, parse_cpulist
from sglang_pd_fabric.fabric.topology.interfaces import Interfaces, parse_ip
from sglang_pd_fabric.fabric.topology.override import read_override

MAX_NICS: int = lib.SPF_MAX_NICS

# With so few CPUs, one taken from the rest of the server costs more than distance does.
FEW_CPUS = 4


class Said(NamedTuple):
    """What a user said, and where: a flag or a variable, for messages. Empty: nothing."""

    where: str
    text: str


@dataclass(frozen=True)
class Rank:
    """Whom the engine serves.

    Attributes:
        address: PCI address of the GPU; None: the pages are in host memory.
        number: the GPU number that the process sees; asked for by mappings only.
    """

    address: str | None = None
    number: int = 0


class NicPlan(NamedTuple):
    """One NIC: libfabric's domain or the address to bind (one of them may be None), and why it."""

    domain: str | None
    source: str | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """What an engine is opened with. ``cpus`` is empty where the I/O thread is not pinned."""

    nics: tuple[NicPlan, ...]
    cpus: tuple[int, ...]
    cpus_reason: str


def plan_engine(
    profile: Profile,
    found: Iterable[ProviderInfo],
    topology: Topology,
    interfaces: Interfaces,
    rank: Rank,
    *,
    nics: Said,
    host: Said,
    cpus: Said,
) -> Plan:
    """Decides for one engine.

    Args:
        found: what ``fi_getinfo`` offers.
        topology, interfaces: the machine.
        rank: whom the engine serves.
        nics: names of NICs, as in ``--disaggregation-ib-device``; of tcp: addresses or interfaces.
        host: the address to bind where the provider binds to one and no NICs were named.
        cpus: ``auto``, ``none``, or a list like ``4-7``.

    Raises:
        FabricError: something named does not exist or cannot be used, or there is no NIC for this engine;
            the message has the flag or variable, the value, and what there is.
    """
    if profile.device_driver is not None:
        placement = _rdma_placement(profile, found, topology, rank, nics)
        chosen = tuple(
            NicPlan(profile.domain(use.nic.name), None, use.reason) for use in placement.nics[:MAX_NICS]
        )
    else:
        placement = assign(topology).placement(rank.address)
        chosen = _socket_nics(profile, interfaces, rank, nics, host)
    near = _near(placement, topology, interfaces, chosen)
    return Plan(chosen, *_cpus(cpus, topology, near))


def _rdma_placement(
    profile: Profile, found: Iterable[ProviderInfo], topology: Topology, rank: Rank, nics: Said
) -> Placement:
    openable = {info.domain.removesuffix(profile.domain_suffix) for info in offered(profile, found)}
    override = parse_override(nics.text, topology, nics.where, openable)
    placement = placement_for(topology, rank.address, rank.number, override, openable)
    if override and len(placement.nics) > MAX_NICS:
        raise OverrideError(f"{nics.where}={nics.text}: at most {MAX_NICS} NICs are possible for one engine")
    if not placement.nics:
        left_out = assign(topology, openable).left_out
        lines = "".join(f"\n  - {entry.nic.name}: {entry.reason}" for entry in left_out)
        raise FabricError(
            f"there is no NIC of {profile.name} for {placement.address}; left out are:{lines or ' none'}\n"
            "Name some with SGLANG_PD_FABRIC_NICS or --disaggregation-ib-device."
        )
    return placement


def _socket_nics(
    profile: Profile, interfaces: Interfaces, rank: Rank, nics: Said, host: Said
) -> tuple[NicPlan, ...]:
    if not profile.binds_host:
        if nics.text.strip():
            raise OverrideError(
                f"{nics.where}={nics.text}: provider {profile.name} has no NICs; leave it out"
            )
        return (NicPlan(None, None, f"{profile.name} has no NICs"),)
    override = read_override(nics.text, nics.where, interfaces.problem, interfaces.what_there_is)
    if override is None:
        if problem := interfaces.problem(host.text):
            raise OverrideError(f"{host.where}={host.text}: {problem}. {interfaces.what_there_is()}")
        return (NicPlan(None, interfaces.address_of(host.text), host.where),)
    names = override.names(rank.number)
    addresses = tuple(dict.fromkeys(interfaces.address_of(name) for name in names))
    if len(addresses) > MAX_NICS:
        raise OverrideError(f"{nics.where}={nics.text}: at most {MAX_NICS} NICs are possible for one engine")
    families = {ip.version for address in addresses if (ip := parse_ip(address))}
    if len(families) > 1:
        raise OverrideError(f"{nics.where}={nics.text}: IPv4 and IPv6 do not mix in one engine")
    return tuple(NicPlan(None, address, f"named by {nics.where}") for address in addresses)


def _near(
    placement: Placement, topology: Topology, interfaces: Interfaces, nics: tuple[NicPlan, ...]
) -> Cores:
    """Cores near the engine's NICs. A host without GPUs that goes by tcp has them at the interface."""
    held = {interfaces.holder(nic.source) for nic in nics if nic.source}
    device = next((nic.pci for nic in topology.nics if held & set(nic.netdevs)), None)
    if placement.gpu or device is None:
        return Cores(placement.cores, placement.cores_reason)
    return divide_cores(topology, {CPU: device})[CPU]


def _cpus(said: Said, topology: Topology, near: Cores) -> tuple[tuple[int, ...], str]:
    """All CPUs of the cores near the NICs, not one of them: engines that share a GPU (MIG) or a host do not
    know each other, and the kernel gives each thread that spins a CPU of its own as long as there are some.
    """
    allowed = topology.allowed
    if said.text == "none":
        return (), f"{said.where}=none"
    if said.text != "auto":
        return tuple(sorted(_named_cpus(said, allowed))), f"named by {said.where}"
    if len(allowed) <= FEW_CPUS:
        return (), f"only {len(allowed)} CPUs are allowed, and the server needs them too"
    cpus = tuple(sorted({cpu for core in near.cores for cpu in core.cpus}))
    if len(cpus) < 2:
        return (), f"its share would be a single CPU ({near.reason})"
    if frozenset(cpus) == allowed:
        return (), f"no allowed CPU is nearer than others ({near.reason})"
    return cpus, near.reason


def _named_cpus(said: Said, allowed: frozenset[int]) -> frozenset[int]:
    there = f"This process may run on {format_cpulist(allowed)}"
    try:
        cpus = parse_cpulist(said.text)
    except ValueError:
        raise OverrideError(f"{said.where}={said.text}: auto, none, or a list like 4-7,12. {there}") from None
    if not cpus or cpus - allowed:
        missing = f"CPUs {format_cpulist(cpus - allowed)} are not allowed" if cpus else "no CPU is named"
        raise OverrideError(f"{said.where}={said.text}: {missing}. {there}")
    return cpus
