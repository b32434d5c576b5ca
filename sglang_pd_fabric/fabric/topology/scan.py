"""Reads one sysfs tree into a `Topology`. The only file of this package with I/O, and it decides nothing.

Devices are found through ``bus/pci/devices`` and ``class/{infiniband,net}``, and their place in the PCIe tree
is the path that these links resolve to. A file that is missing or unreadable (containers hide some) costs
that one fact, never the scan.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from sglang_pd_fabric.fabric.topology.cpulist import parse_cpulist
from sglang_pd_fabric.fabric.topology.model import Core, Gpu, Nic, PciDevice, Port, Topology

SYSFS = Path("/sys")
NVIDIA = "10de"
GPU_CLASSES = ("0300", "0302")  # VGA and 3D controller
NETWORK_CLASS = "02"

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


def scan(sysfs: Path = SYSFS, allowed: Iterable[int] | None = None) -> Topology:
    """Reads the machine.

    Args:
        sysfs: root of the tree, so that recorded trees can be read.
        allowed: CPUs on which this process may run; default: its affinity, cut by its cgroup's cpuset.
    """
    cpus = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    functions = _scan_pci(sysfs)
    problems = []
    if not functions:
        problems.append(f"no PCI devices in {sysfs / 'bus/pci/devices'}: GPUs and NICs cannot be placed")
    cores = _scan_cores(sysfs)
    if not cores:
        problems.append(f"no CPUs in {sysfs / 'devices/system/cpu'}: every allowed CPU counts as a core")
    return Topology(
        source=str(sysfs),
        gpus=tuple(Gpu(function.device) for function in functions.values() if function.is_gpu),
        nics=tuple(_scan_nics(sysfs, functions)),
        cores=cores,
        allowed=cpus,
        problems=tuple(problems),
    )


def online_cpus(sysfs: Path = SYSFS) -> frozenset[int]:
    """All CPUs of a tree: what to allow when the tree is not this machine's."""
    return parse_cpulist(_read(sysfs / "devices/system/cpu/online"))


def read_text(path: str) -> str:
    """A file that a user named.

    Raises:
        OSError: it cannot be read.
    """
    return Path(path).read_text(encoding="utf-8")


@dataclass
class _Function:
    """A PCI function with what else is known of it while scanning."""

    device: PciDevice
    pci_class: str
    driver: str
    physical_function: str
    rdma: list[str] = field(default_factory=list)
    netdevs: list[str] = field(default_factory=list)

    @property
    def is_gpu(self) -> bool:
        # A hypervisor's vGPU functions are the same GPU once more.
        nvidia = self.device.vendor == NVIDIA and self.pci_class in GPU_CLASSES
        return nvidia and not self.physical_function


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _link_name(link: Path) -> str:
    return os.path.basename(os.path.realpath(link)) if link.is_symlink() else ""


def _pci_path(folder: Path) -> tuple[str, ...]:
    """The host bridge and all PCI functions on the way to a folder of ``devices``; empty if not below PCI."""
    parts = Path(os.path.realpath(folder)).parts
    # A VM's host bridge may hang below other buses (Hyper-V: VMBUS); what is above it says nothing.
    start = next((i for i, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), len(parts))
    path = list(parts[start : start + 1])
    for part in parts[start + 1 :]:
        if not _ADDRESS.fullmatch(part):
            break
        path.append(part)
    return tuple(path)


def _scan_pci(sysfs: Path) -> dict[str, _Function]:
    functions = {}
    for address in _names(sysfs / "bus/pci/devices"):
        folder = sysfs / "bus/pci/devices" / address
        path = _pci_path(folder)
        if not path or path[-1] != address:
            continue
        numa = _read(folder / "numa_node")
        device = PciDevice(
            address=address,
            path=path,
            vendor=_read(folder / "vendor").removeprefix("0x"),
            device=_read(folder / "device").removeprefix("0x"),
            numa=int(numa) if numa.isdecimal() else None,
            local_cpus=parse_cpulist(_read(folder / "local_cpulist")),
        )
        functions[address] = _Function(
            device,
            pci_class=_read(folder / "class").removeprefix("0x")[:4],
            driver=_link_name(folder / "driver"),
            physical_function=_link_name(folder / "physfn"),
        )
    return functions


def _scan_nics(sysfs: Path, functions: dict[str, _Function]) -> Iterable[Nic]:
    for name in _names(sysfs / "class/net"):
        path = _pci_path(sysfs / "class/net" / name / "device")
        if path and path[-1] in functions:
            functions[path[-1]].netdevs.append(name)
    for name in _names(sysfs / "class/infiniband"):
        path = _pci_path(sysfs / "class/infiniband" / name / "device")
        function = functions.get(path[-1]) if path else None
        if function is not None:
            function.rdma.append(name)
        else:
            yield Nic(name, None, driver="", rdma=True, ports=_scan_ports(sysfs, name))
    for address, function in functions.items():
        plain = Nic(
            name=(*function.netdevs, address)[0],
            pci=function.device,
            driver=function.driver,
            rdma=False,
            netdevs=tuple(function.netdevs),
            physical_function=function.physical_function,
        )
        for name in function.rdma:
            yield replace(plain, name=name, rdma=True, ports=_scan_ports(sysfs, name))
        if not function.rdma and function.pci_class.startswith(NETWORK_CLASS):
            yield plain


def _scan_ports(sysfs: Path, name: str) -> tuple[Port, ...]:
    folder = sysfs / "class/infiniband" / name / "ports"
    return tuple(
        Port(
            number=int(number),
            state=_read(folder / number / "state").rpartition(":")[2].strip(),  # "4: ACTIVE"
            gbps=_leading_number(_read(folder / number / "rate")),  # "400 Gb/sec (4X NDR)"
            link_layer=_read(folder / number / "link_layer"),
        )
        for number in _names(folder)
        if number.isdecimal()
    )


def _leading_number(text: str) -> int:
    match = re.match(r"[0-9]+", text)
    return int(match[0]) if match else 0


def _scan_cores(sysfs: Path) -> tuple[Core, ...]:
    nodes = {}
    for name in _names(sysfs / "devices/system/node"):
        if re.fullmatch(r"node[0-9]+", name):
            cpus = parse_cpulist(_read(sysfs / "devices/system/node" / name / "cpulist"))
            nodes.update(dict.fromkeys(cpus, int(name.removeprefix("node"))))
    cores = set()
    for cpu in online_cpus(sysfs):
        folder = sysfs / f"devices/system/cpu/cpu{cpu}/topology"
        siblings = parse_cpulist(_read(folder / "thread_siblings_list")) or {cpu}
        cores.add(Core(tuple(sorted(siblings)), nodes.get(cpu, -1)))
    return tuple(sorted(cores))
