"""Decides which NICs serve which GPU: the nearest ones, divided fairly, none idle, no GPU without.

First every NIC goes to a GPU: NICs that are equally near to the same GPUs are one pool, and a pool is dealt
out to these GPUs, those with the fewest NICs first, in runs of neighbouring PCI addresses. Then each GPU that
got none shares the nearest NIC, the one with the fewest users first. So 16 NICs for 8 GPUs make two for each,
4 make one for each two, and of 9 NICs none is dropped.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sglang_pd_fabric.fabric.topology.cores import Cores, divide_cores
from sglang_pd_fabric.fabric.topology.model import (
    Core,
    Distance,
    Gpu,
    Level,
    Nic,
    PciDevice,
    Topology,
    distance,
    pci_address,
)
from sglang_pd_fabric.fabric.topology.usable import Choice, LeftOut, choose_nics, named_nics

CPU = "cpu"


@dataclass(frozen=True)
class NicUse:
    """A NIC that serves a GPU, and why this one."""

    nic: Nic
    reason: str


@dataclass(frozen=True)
class Placement:
    """What one GPU works with, or the CPU of a host without GPUs.

    Attributes:
        gpu: None for the CPU.
        nics: its NICs by PCI address; empty where the machine has none to use.
        cores: physical cores for its I/O threads, the best first. Several engines on one GPU (MIG) take one
            after the other.
        cores_reason: why these cores.
    """

    gpu: Gpu | None
    nics: tuple[NicUse, ...]
    cores: tuple[Core, ...]
    cores_reason: str

    @property
    def address(self) -> str:
        """The GPU's PCI address, or ``cpu``."""
        return self.gpu.address if self.gpu else CPU

    @property
    def nic_names(self) -> tuple[str, ...]:
        """Names of the NICs, as libfabric's domains begin."""
        return tuple(use.nic.name for use in self.nics)


@dataclass(frozen=True)
class Assignment:
    """The whole machine's placements, the NICs that nobody uses, and what should be known."""

    topology: Topology
    placements: tuple[Placement, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]

    def placement(self, address: str | None = None) -> Placement:
        """The placement of a GPU, by the PCI address that CUDA or NVML report, or of the CPU (None).

        A GPU that sysfs does not show is served like the CPU: by every NIC that can be used.
        """
        wanted = CPU if address is None else pci_address(address)
        for placement in self.placements:
            if placement.address == wanted:
                return placement
        place = f"{wanted} is not in {self.topology.source}" if address else "no GPU was named"
        used = {use.nic: None for placement in self.placements for use in placement.nics}
        cores = divide_cores(self.topology, {CPU: None})[CPU]
        uses = tuple(NicUse(nic, f"{place}, so every usable NIC") for nic in used)
        return Placement(None, uses, cores.cores, cores.reason)


def assign(
    topology: Topology, openable: Collection[str] | None = None, only: Collection[str] | None = None
) -> Assignment:
    """Decides for the whole machine. The same machine gives the same result in every process.

    Args:
        topology: the machine.
        openable: RDMA devices that libfabric offers to this process; None: not asked.
        only: names of the NICs to divide, if a user said so; this overrules what looks like a front-end NIC.
    """
    choice = choose_nics(topology, openable) if only is None else named_nics(topology, only)
    notes = list(topology.problems)
    if not choice.used:
        notes.append("no NIC that can carry KV pages by RDMA: only libfabric's tcp and shm are left")
    if topology.gpus:
        placements = _assign_gpus(topology, choice.used)
    else:
        notes.append("no NVIDIA GPU: NICs and cores are chosen for the CPU")
        choice, placements = _assign_cpu(topology, choice)
    return Assignment(topology, placements, choice.left_out, tuple(notes))


def _assign_gpus(topology: Topology, nics: Sequence[Nic]) -> tuple[Placement, ...]:
    gpus = sorted(topology.gpus, key=lambda gpu: gpu.address)
    distances = {(gpu, nic): _distance(gpu.pci, nic) for gpu in gpus for nic in nics}
    own = _deal(gpus, nics, distances)
    shared = _lend(gpus, nics, distances, own)
    uses = {gpu: sorted(own[gpu] or shared[gpu], key=lambda nic: nic.order) for gpu in gpus}
    users = {nic: [gpu for gpu in gpus if nic in uses[gpu]] for nic in nics}
    anchors = {gpu.address: _nearest_place(gpu, uses[gpu], distances) for gpu in gpus}
    cores = divide_cores(topology, anchors)
    return tuple(
        _placement(
            gpu, [NicUse(nic, _why(gpu, nic, distances, users)) for nic in uses[gpu]], cores[gpu.address]
        )
        for gpu in gpus
    )


def _distance(pci: PciDevice, nic: Nic) -> Distance:
    return distance(pci, nic.pci) if nic.pci else Distance(Level.FAR)


def _deal(
    gpus: Sequence[Gpu], nics: Sequence[Nic], distances: Mapping[tuple[Gpu, Nic], Distance]
) -> dict[Gpu, list[Nic]]:
    """Gives every NIC to one GPU."""
    pools: dict[tuple[Distance, tuple[Gpu, ...]], list[Nic]] = {}
    for nic in nics:
        nearest = min(distances[gpu, nic] for gpu in gpus)
        at_it = tuple(gpu for gpu in gpus if distances[gpu, nic] == nearest)
        pools.setdefault((nearest, at_it), []).append(nic)
    own: dict[Gpu, list[Nic]] = {gpu: [] for gpu in gpus}
    # Near pools first: a NIC that is equally far from all should go where no near one is.
    for (_, at_it), pool in sorted(pools.items(), key=lambda item: (item[0][0], item[1][0].order)):
        quota = dict.fromkeys(at_it, 0)
        for _nic in pool:
            quota[min(at_it, key=lambda gpu: len(own[gpu]) + quota[gpu])] += 1
        rest = iter(pool)
        for gpu in at_it:
            own[gpu] += [next(rest) for _ in range(quota[gpu])]
    return own


def _lend(
    gpus: Sequence[Gpu],
    nics: Sequence[Nic],
    distances: Mapping[tuple[Gpu, Nic], Distance],
    own: Mapping[Gpu, Sequence[Nic]],
) -> dict[Gpu, list[Nic]]:
    """Gives a NIC of others to each GPU that has none of its own."""
    users = dict.fromkeys(nics, 1)
    shared: dict[Gpu, list[Nic]] = {gpu: [] for gpu in gpus}
    for gpu in gpus:
        if nics and not own[gpu]:
            nic = min(nics, key=lambda nic: (distances[gpu, nic], users[nic], nic.order))
            users[nic] += 1
            shared[gpu].append(nic)
    return shared


def _nearest_place(gpu: Gpu, nics: Sequence[Nic], distances: Mapping[tuple[Gpu, Nic], Distance]) -> PciDevice:
    """Where the GPU's I/O thread should be: at its nearest NIC, or without one at the GPU."""
    nearest = min(nics, key=lambda nic: (distances[gpu, nic], nic.order), default=None)
    return nearest.pci if nearest and nearest.pci else gpu.pci


def _why(
    gpu: Gpu,
    nic: Nic,
    distances: Mapping[tuple[Gpu, Nic], Distance],
    users: Mapping[Nic, Sequence[Gpu]],
) -> str:
    others = ", ".join(other.address for other in users[nic] if other != gpu)
    return f"{distances[gpu, nic]}, shared with {others}" if others else str(distances[gpu, nic])


def _placement(gpu: Gpu | None, uses: Sequence[NicUse], cores: Cores) -> Placement:
    return Placement(gpu, tuple(uses), cores.cores, cores.reason)


def _assign_cpu(topology: Topology, choice: Choice) -> tuple[Choice, tuple[Placement, ...]]:
    """A host without GPUs: the NICs of the NUMA nodes on which this process may run."""
    nodes = {core.numa for core in topology.allowed_cores()} - {-1}
    text = f"NUMA node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, sorted(nodes)))}"
    near = [nic for nic in choice.used if nic.pci and nic.pci.numa in nodes]
    used = near or list(choice.used)
    reason = f"on {text}, like this process" if near else "no NIC is known to be nearer"
    far = tuple(
        LeftOut(nic, f"{_node(nic)}, and this process runs on {text}")
        for nic in choice.used
        if nic not in used
    )
    cores = divide_cores(topology, {CPU: used[0].pci if used else None})[CPU]
    left_out = tuple(sorted(choice.left_out + far, key=lambda entry: entry.nic.order))
    return replace(choice, left_out=left_out), (
        _placement(None, [NicUse(nic, reason) for nic in used], cores),
    )


def _node(nic: Nic) -> str:
    node = nic.pci.numa if nic.pci else None
    return "on no known NUMA node" if node is None else f"on NUMA node {node}"
