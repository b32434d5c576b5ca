"""Cores for the I/O threads: physical ones, near the NICs, and each GPU's own where there are enough.

An I/O thread spins while pages are moving. Two of them on one core, or on the two threads of one core, would
halve both; one that is far from its NIC pays the way between the sockets for each completion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglang_pd_fabric.fabric.topology.cpulist import format_cpulist
from sglang_pd_fabric.fabric.topology.model import Core, PciDevice, Topology


@dataclass(frozen=True)
class Cores:
    """Cores of one GPU, the best first, and why these."""

    cores: tuple[Core, ...]
    reason: str


def divide_cores(topology: Topology, anchors: Mapping[str, PciDevice | None]) -> dict[str, Cores]:
    """Divides the allowed cores among the GPUs.

    Args:
        topology: the machine, with the CPUs on which we may run.
        anchors: for each GPU (by address) the device that its cores should be near; None: any place.
    """
    near = {key: _cores_near(topology, anchor) for key, anchor in anchors.items()}
    groups: dict[tuple[Core, ...], list[str]] = {}
    for key in sorted(near):
        groups.setdefault(near[key].cores, []).append(key)
    taken: set[Core] = set()
    divided = {}
    # The smallest pools first: whoever can run in few places only must not find them taken.
    for pool, keys in sorted(groups.items(), key=lambda item: (len(item[0]), item[1])):
        free = tuple(core for core in pool if core not in taken) or pool
        for index, key in enumerate(keys):
            share = _share(free, index, len(keys))
            taken.update(share)
            divided[key] = Cores(share, _explain(near[key].reason, free, keys))
    return divided


def _share(pool: Sequence[Core], index: int, count: int) -> tuple[Core, ...]:
    """Part ``index`` of ``count`` of a pool: neighbours, or one shared core if there are too few."""
    if not pool:
        return ()
    if len(pool) < count:
        return (pool[index % len(pool)],)
    part = pool[index * len(pool) // count : (index + 1) * len(pool) // count]
    # CPU 0 comes last, since the kernel's own housekeeping and unrouted interrupts run there.
    return tuple(sorted(part, key=lambda core: (0 in core.cpus, core)))


def _explain(near: str, pool: Sequence[Core], keys: Sequence[str]) -> str:
    if len(keys) == 1:
        return near
    if len(pool) < len(keys):
        return f"{near}; {len(pool)} cores for {len(keys)} GPUs, so some are shared"
    return f"{near}; divided among {len(keys)} GPUs"


def _cores_near(topology: Topology, anchor: PciDevice | None) -> Cores:
    allowed = topology.allowed_cores()
    if anchor is None:
        return Cores(allowed, "any allowed core")
    if anchor.local_cpus:
        chosen = tuple(core for core in allowed if anchor.local_cpus & set(core.cpus))
        where = f"CPUs {format_cpulist(anchor.local_cpus)} near {anchor.address}"
    else:
        chosen = tuple(core for core in allowed if anchor.numa is not None and core.numa == anchor.numa)
        where = f"NUMA node {'unknown' if anchor.numa is None else anchor.numa} of {anchor.address}"
    if chosen:
        return Cores(chosen, where)
    return Cores(allowed, f"none of {where} is allowed, so any allowed core")
