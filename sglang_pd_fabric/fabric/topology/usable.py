"""Which NICs may carry KV pages. Every other one is left out with the reason, which users will ask for.

Two kinds of reasons. Some NICs cannot: no RDMA, no active port. Others should not: they belong to the
front-end network (storage, logins, the internet), where KV pages would disturb others and reach nobody.
Sysfs does not say what a network is for, so that is inferred from model and place; a user can overrule it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sglang_pd_fabric.fabric.topology.model import Gpu, Level, Nic, Topology, distance


@dataclass(frozen=True)
class LeftOut:
    """A NIC that is not used, and why."""

    nic: Nic
    reason: str


@dataclass(frozen=True)
class Choice:
    """NICs divided into those to use and those to leave out, both in the order of their PCI addresses."""

    used: tuple[Nic, ...]
    left_out: tuple[LeftOut, ...]


def choose_nics(topology: Topology, openable: Collection[str] | None = None) -> Choice:
    """The NICs to use on this machine.

    Args:
        topology: the machine.
        openable: RDMA devices that libfabric offers to this process; None: not asked.
    """
    nics = sorted(topology.nics, key=lambda nic: nic.order)
    reasons = {
        nic: reason
        for nic in nics
        if (reason := why_not_able(nic, openable) or _why_redundant(nic, topology.nics))
    }
    able = [nic for nic in nics if nic not in reasons]
    reasons |= _front_end(able, topology)
    return _divide(nics, reasons)


def named_nics(topology: Topology, names: Collection[str]) -> Choice:
    """Exactly the NICs that a user named."""
    nics = sorted(topology.nics, key=lambda nic: nic.order)
    return _divide(nics, {nic: "not among the NICs that were named" for nic in nics if nic.name not in names})


def why_not_able(nic: Nic, openable: Collection[str] | None = None) -> str:
    """Why a NIC cannot carry KV pages at all, even if a user asks for it; empty if it can."""
    if not nic.rdma:
        return f"no RDMA device ({f'driver {nic.driver}' if nic.driver else 'no driver bound'})"
    if nic.ports and not any(port.state in ("ACTIVE", "") for port in nic.ports):
        return ", ".join(f"port {port.number} is {port.state}" for port in nic.ports)
    if openable is not None and nic.name not in openable:
        return "libfabric does not offer it (in a container: is /dev/infiniband mapped?)"
    return ""


def _divide(nics: Iterable[Nic], reasons: Mapping[Nic, str]) -> Choice:
    return Choice(
        used=tuple(nic for nic in nics if nic not in reasons),
        left_out=tuple(LeftOut(nic, reasons[nic]) for nic in nics if nic in reasons),
    )


def _why_redundant(nic: Nic, nics: Iterable[Nic]) -> str:
    """Why a NIC adds no bandwidth to the others; empty if it does."""
    if nic.pci is None:
        return "RDMA in software, no hardware behind it"
    able = [other for other in nics if other.pci and not why_not_able(other)]
    if any(other.pci == nic.pci and other.order < nic.order for other in able):
        return f"another RDMA device of {nic.pci.address}, which is used already"
    if any(other.pci and other.pci.address == nic.physical_function for other in able):
        return f"virtual function of {nic.physical_function}, which is here itself"
    return ""


def _front_end(able: Sequence[Nic], topology: Topology) -> dict[Nic, str]:
    """Reasons to leave out NICs that can carry KV pages but look like the front-end network's."""
    if not able:
        return {}
    kinds = Counter(map(_kind, able))
    # The fabric's NICs are beside the most GPUs; then the fastest, the most, and last the name, so that the
    # result never depends on the order in which devices were found.
    fabric = max(
        kinds,
        key=lambda kind: (_gpus_beside(kind, able, topology.gpus), _rate(kind, able), kinds[kind], kind),
    )
    reasons = {
        nic: f"front-end: {_name(_kind(nic))}, but the fabric's NICs are {kinds[fabric]} x {_name(fabric)}"
        for nic in able
        if _kind(nic) != fabric
    }
    rest = [nic for nic in able if nic not in reasons]
    if topology.gpus and _gpus_beside(fabric, able, topology.gpus) == len(topology.gpus):
        reasons |= {
            nic: "front-end: beside no GPU, while every GPU has a NIC below its own PCIe switch"
            for nic in rest
            if not any(_beside(gpu, nic) for gpu in topology.gpus)
        }
    return reasons


def _kind(nic: Nic) -> tuple[str, str]:
    """NICs of one fabric have the same model and link layer: InfiniBand does not talk to Ethernet."""
    active = [port for port in nic.ports if port.state == "ACTIVE"]
    return (nic.pci.model if nic.pci else "", active[0].link_layer if active else "")


def _name(kind: tuple[str, str]) -> str:
    model, link_layer = kind
    return f"{model} ({link_layer})" if link_layer not in ("", "Unspecified") else model


def _rate(kind: tuple[str, str], nics: Iterable[Nic]) -> int:
    return sum(nic.gbps for nic in nics if _kind(nic) == kind)


def _beside(gpu: Gpu, nic: Nic) -> bool:
    return nic.pci is not None and distance(gpu.pci, nic.pci).level is Level.BRIDGE


def _gpus_beside(kind: tuple[str, str], nics: Sequence[Nic], gpus: Iterable[Gpu]) -> int:
    return sum(any(_beside(gpu, nic) for nic in nics if _kind(nic) == kind) for gpu in gpus)
