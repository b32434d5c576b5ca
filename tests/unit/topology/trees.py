"""Builds a sysfs tree out of a compact description: what is where on the PCIe tree, and the CPUs.

Folders, links and file contents are those of a real /sys (Linux 6), cut down to what `scan` reads, plus the
bridges, which are PCI functions like any other.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from sglang_pd_fabric.fabric.topology.cpulist import format_cpulist, parse_cpulist


@dataclass(frozen=True)
class Function:
    """One PCI function.

    Attributes:
        path: from the host bridge to the function, joined by ``/``.
        ids: class, vendor, device: ``0302 10de 2330``.
        numa: -1 as in most VMs.
        rdma, netdevs: devices that hang from it.
        driver: kernel driver.
        port: state, rate, link layer of the RDMA device's only port.
        physfn: address of the physical function of a virtual one.
    """

    path: str
    ids: str
    numa: int = -1
    rdma: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    driver: str = ""
    port: tuple[str, str, str] = ("4: ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand")
    physfn: str = ""


@dataclass(frozen=True)
class Machine:
    """Functions and CPUs.

    Attributes:
        name: for test ids.
        functions: all PCI functions but the bridges.
        nodes: CPUs of each NUMA node; empty: the kernel has no NUMA nodes.
        threads_apart: a core's two threads are this far apart; 0: one thread for each core.
        software_rdma: names of RDMA devices without hardware.
    """

    name: str
    functions: tuple[Function, ...]
    nodes: tuple[str, ...] = ("0-7",)
    threads_apart: int = 0
    software_rdma: tuple[str, ...] = ()

    @property
    def cpus(self) -> frozenset[int]:
        return frozenset(cpu for node in self.nodes for cpu in parse_cpulist(node))

    def write(self, sysfs: Path) -> Path:
        """Writes the tree and returns its root."""
        for function in self.functions:
            self._write_function(sysfs, function)
        for name in self.software_rdma:
            _write_rdma(sysfs, sysfs / "devices/virtual/infiniband" / name, name, Function("", ""))
        self._write_cpus(sysfs)
        return sysfs

    def _write_function(self, sysfs: Path, function: Function) -> None:
        host_bridge, *addresses = function.path.split("/")
        folder = sysfs / "devices" / host_bridge
        for address in addresses:
            folder = folder / address
            folder.mkdir(parents=True, exist_ok=True)
            _link(sysfs / "bus/pci/devices" / address, folder)
            self._write_ids(folder, "0604 10b5 8796", function.numa)
        self._write_ids(folder, function.ids, function.numa)
        if function.driver:
            driver = sysfs / "bus/pci/drivers" / function.driver
            driver.mkdir(parents=True, exist_ok=True)
            _link(folder / "driver", driver)
        if function.physfn:
            _link(folder / "physfn", sysfs / "bus/pci/devices" / function.physfn)
        for name in function.netdevs:
            (folder / "net" / name).mkdir(parents=True)
            _link(folder / "net" / name / "device", folder)
            _link(sysfs / "class/net" / name, folder / "net" / name)
        for name in function.rdma:
            _write_rdma(sysfs, folder / "infiniband" / name, name, function)
            _link(folder / "infiniband" / name / "device", folder)

    def _write_ids(self, folder: Path, ids: str, numa: int) -> None:
        pci_class, vendor, device = ids.split()
        near = self.nodes[numa] if 0 <= numa < len(self.nodes) else format_cpulist(self.cpus)
        _write(folder / "class", f"0x{pci_class}00")
        _write(folder / "vendor", f"0x{vendor}")
        _write(folder / "device", f"0x{device}")
        _write(folder / "numa_node", str(numa))
        _write(folder / "local_cpulist", near)

    def _write_cpus(self, sysfs: Path) -> None:
        if not self.cpus:
            return
        _write(sysfs / "devices/system/cpu/online", format_cpulist(self.cpus))
        for cpu in self.cpus:
            apart = self.threads_apart
            siblings = {cpu % apart, cpu % apart + apart} if apart else {cpu}
            folder = sysfs / f"devices/system/cpu/cpu{cpu}/topology"
            _write(folder / "thread_siblings_list", format_cpulist(siblings))
        for node, cpus in enumerate(self.nodes):
            _write(sysfs / f"devices/system/node/node{node}/cpulist", cpus)


def _write_rdma(sysfs: Path, folder: Path, name: str, function: Function) -> None:
    state, rate, link_layer = function.port
    _write(folder / "ports/1/state", state)
    _write(folder / "ports/1/rate", rate)
    _write(folder / "ports/1/link_layer", link_layer)
    _link(sysfs / "class/infiniband" / name, folder)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(target, link.parent))
