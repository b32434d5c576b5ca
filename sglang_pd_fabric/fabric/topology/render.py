"""Shows an assignment: as text for people, as plain data for JSON. Both hold the reason of every choice."""

from collections.abc import Iterable
from typing import Any

from sglang_pd_fabric.fabric.topology.assign import CPU, Assignment, NicUse, Placement
from sglang_pd_fabric.fabric.topology.cpulist import format_cpulist
from sglang_pd_fabric.fabric.topology.model import Core, Nic

JSON_VERSION = 1


def to_text(assignment: Assignment) -> str:
    """A few lines for each GPU: its NICs and cores, then the NICs that are left out, each with its reason."""
    lines = [f"{assignment.topology.source}: {summary(assignment)}"]
    lines += [f"note: {note}" for note in assignment.notes]
    for number, placement in enumerate(assignment.placements):
        lines += ["", *_placement_lines(number, placement)]
    if assignment.left_out:
        lines += ["", "left out"]
        lines += _table((*_nic_cells(entry.nic), entry.reason) for entry in assignment.left_out)
    return "\n".join(lines)


def to_data(assignment: Assignment) -> dict[str, Any]:
    """The same as plain data. ``version`` changes when a field changes its meaning."""
    return {
        "version": JSON_VERSION,
        "source": assignment.topology.source,
        "allowed_cpus": format_cpulist(assignment.topology.allowed),
        "notes": list(assignment.notes),
        "placements": [
            {
                "gpu": placement.gpu.address if placement.gpu else None,
                "model": placement.gpu.pci.model if placement.gpu else None,
                "numa": placement.gpu.pci.numa if placement.gpu else None,
                "nics": [_nic_data(use.nic, use.reason) for use in placement.nics],
                "cores": [list(core.cpus) for core in placement.cores],
                "cores_reason": placement.cores_reason,
            }
            for placement in assignment.placements
        ],
        "left_out": [_nic_data(entry.nic, entry.reason) for entry in assignment.left_out],
    }


def summary(assignment: Assignment) -> str:
    """One line: how many GPUs, NICs, NUMA nodes, cores and CPUs there are, and how many may be used."""
    topology = assignment.topology
    nodes = {core.numa for core in topology.cores} - {-1}
    cpus = {cpu for core in topology.cores for cpu in core.cpus}
    used = {use.nic for placement in assignment.placements for use in placement.nics}
    parts = [
        _count(len(topology.gpus), "GPU"),
        f"{len(used)} of {_count(len(topology.nics), 'NIC')} in use",
        _count(len(nodes), "NUMA node") if nodes else "NUMA unknown",
        _count(len(topology.cores), "core"),
        f"{len(cpus & topology.allowed)} of {_count(len(cpus), 'CPU')} allowed",
    ]
    return ", ".join(parts)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _placement_lines(number: int, placement: Placement) -> list[str]:
    if placement.gpu:
        pci = placement.gpu.pci
        title = f"GPU {number}  {pci.address}  {pci.model}  {_numa(pci.numa)}"
    else:
        title = CPU.upper()
    cores = f"  cores  {cores_text(placement.cores)}  ({placement.cores_reason})"
    return [title, *_table(_use_cells(use) for use in placement.nics), cores]


def _use_cells(use: NicUse) -> tuple[str, ...]:
    return (*_nic_cells(use.nic), use.reason)


def _nic_cells(nic: Nic) -> tuple[str, ...]:
    place = nic.pci.address if nic.pci else ""
    return (nic.name, place, f"{nic.gbps} Gb/s" if nic.gbps else "", _numa(nic.pci.numa if nic.pci else None))


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width).rstrip()
        for row in rows
    )
    return [f"  {line}" for line in padded]


def cores_text(cores: Iterable[Core]) -> str:
    """Cores by their first threads, and the other threads of the same cores."""
    cores = list(cores)
    first = format_cpulist(core.cpus[0] for core in cores)
    rest = [cpu for core in cores for cpu in core.cpus[1:]]
    return f"{first} (siblings {format_cpulist(rest)})" if rest else first


def _numa(node: int | None) -> str:
    return "NUMA ?" if node is None else f"NUMA {node}"


def _nic_data(nic: Nic, reason: str) -> dict[str, Any]:
    return {
        "name": nic.name,
        "pci": nic.pci.address if nic.pci else None,
        "model": nic.pci.model if nic.pci else None,
        "numa": nic.pci.numa if nic.pci else None,
        "driver": nic.driver,
        "rdma": nic.rdma,
        "gbps": nic.gbps,
        "netdevs": list(nic.netdevs),
        "reason": reason,
    }
