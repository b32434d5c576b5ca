"""What a machine has, as far as the choice of NICs and cores depends on it: records without behaviour
beyond naming and distance. ``scan`` makes them, everything else in this package only reads them."""

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import total_ordering

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


def pci_address(text: str) -> str:
    """A PCI address the way sysfs writes it. NVML pads the domain to eight digits, CUDA writes capitals."""
    match = _ADDRESS.fullmatch(text.strip().lower())
    if match is None:
        return text
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}"


@dataclass(frozen=True)
class PciDevice:
    """One PCI function and its place.

    Attributes:
        address: ``0000:53:00.0``.
        path: from the host bridge (``pci0000:44``) over all bridges to the device itself.
        vendor: ``10de``.
        device: ``2330``.
        numa: NUMA node; None where the machine does not say (sysfs has -1), as in most VMs.
        local_cpus: CPUs near it, by the kernel's own account; empty where it has none.
    """

    address: str
    path: tuple[str, ...]
    vendor: str
    device: str
    numa: int | None
    local_cpus: frozenset[int]

    @property
    def model(self) -> str:
        """Vendor and device id, ``15b3:1021``."""
        return f"{self.vendor}:{self.device}"


class Level(IntEnum):
    """How far two devices are from each other: what their traffic has to cross. Nearer is smaller."""

    BRIDGE = 0
    HOST_BRIDGE = 1
    NUMA = 2
    FAR = 3


@total_ordering
@dataclass(frozen=True)
class Distance:
    """A level, and for devices below common PCI bridges the nearest one of these.

    Attributes:
        level: what counts first.
        bridge: the deepest bridge above both devices; empty if they share none.
        depth: how deep that is. Of two bridges above one GPU the deeper one is nearer, which tells the two
            switches of a cascade apart.
    """

    level: Level
    bridge: str = ""
    depth: int = 0

    def __lt__(self, other: "Distance") -> bool:
        return (self.level, -self.depth) < (other.level, -other.depth)

    def __str__(self) -> str:
        return {
            Level.BRIDGE: f"same PCIe switch {self.bridge}",
            Level.HOST_BRIDGE: f"same host bridge {self.bridge}",
            Level.NUMA: "same NUMA node",
            Level.FAR: "no PCIe bridge or NUMA node in common",
        }[self.level]


def distance(one: PciDevice, other: PciDevice) -> Distance:
    """How far two PCI devices are from each other. It does not matter which comes first."""
    common = 0
    for left, right in zip(one.path[:-1], other.path[:-1], strict=False):
        if left != right:
            break
        common += 1
    if common:
        level = Level.HOST_BRIDGE if common == 1 else Level.BRIDGE
        return Distance(level, one.path[common - 1], common)
    if one.numa is not None and one.numa == other.numa:
        return Distance(Level.NUMA)
    return Distance(Level.FAR)


@dataclass(frozen=True)
class Port:
    """One port of an RDMA device.

    Attributes:
        number: counted from 1.
        state: ``ACTIVE``, ``DOWN``, ...; empty if unknown.
        gbps: rate in Gb/s; 0 if unknown.
        link_layer: ``InfiniBand``, ``Ethernet``; EFA says ``Unspecified``.
    """

    number: int
    state: str
    gbps: int
    link_layer: str


@dataclass(frozen=True)
class Nic:
    """A network controller.

    Attributes:
        name: the RDMA device (``mlx5_0``, ``rdmap79s0``), else a network interface, else the PCI address.
        pci: its PCI function; None for RDMA in software (``rxe0``).
        driver: the kernel driver bound to it, or empty.
        rdma: whether it is an RDMA device, so that libfabric's efa or verbs can use it.
        ports: the RDMA device's ports.
        netdevs: its network interfaces in this network namespace.
        physical_function: address of the physical function if this is an SR-IOV virtual one, else empty.
    """

    name: str
    pci: PciDevice | None
    driver: str
    rdma: bool
    ports: tuple[Port, ...] = ()
    netdevs: tuple[str, ...] = ()
    physical_function: str = ""

    @property
    def gbps(self) -> int:
        """The rate of its active ports together."""
        return sum(port.gbps for port in self.ports if port.state == "ACTIVE")

    @property
    def order(self) -> tuple[str, tuple[tuple[int, str], ...]]:
        """Sorts NICs by place, then ``mlx5_2`` before ``mlx5_10``."""
        parts = re.findall(r"[0-9]+|[^0-9]+", self.name)
        natural = tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)
        return (self.pci.address if self.pci else "", natural)


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU. All MIG instances of one are one PCI function, hence one of these."""

    pci: PciDevice

    @property
    def address(self) -> str:
        """Its PCI address, which is how CUDA, NVML and we agree on which GPU is meant."""
        return self.pci.address


@dataclass(frozen=True, order=True)
class Core:
    """A physical core: its hardware threads, and its NUMA node (-1 if unknown)."""

    cpus: tuple[int, ...]
    numa: int


@dataclass(frozen=True)
class Topology:
    """One machine.

    Attributes:
        source: where this was read, for messages.
        gpus, nics, cores: what there is.
        allowed: CPUs on which this process may run (affinity and cgroup).
        problems: what could not be read, in words.
    """

    source: str
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    cores: tuple[Core, ...] = ()
    allowed: frozenset[int] = frozenset()
    problems: tuple[str, ...] = ()

    def allowed_cores(self) -> tuple[Core, ...]:
        """The cores with a thread on which we may run, with only these threads.

        A CPU of which nothing is known counts as a core, so that a container without /sys still has some.
        """
        cores = [
            Core(cpus, core.numa)
            for core in self.cores
            if (cpus := tuple(cpu for cpu in core.cpus if cpu in self.allowed))
        ]
        known = {cpu for core in self.cores for cpu in core.cpus}
        cores += [Core((cpu,), -1) for cpu in self.allowed - known]
        return tuple(sorted(cores))
