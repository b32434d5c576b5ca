"""Which NICs and which cores belong to a GPU: read from sysfs, decided by PCIe distance, with the reasons.

``scan`` reads one sysfs tree into the records of ``model``, the only part here that touches files.
``usable`` leaves out NICs that cannot or should not carry KV pages, ``assign`` divides the others among the
GPUs, ``cores`` finds cores for the I/O threads, ``override`` is what a user says instead, ``render`` shows
it. All of these are pure, so recorded or invented trees test them on any machine.

Every rank of a node computes the assignment of all its GPUs and takes its own part, so ranks agree without
talking to each other, whatever part of the GPUs each of them can see. Cores are divided among those on which
the rank may run: ranks with the same affinity, or with disjoint ones, get disjoint cores.
"""

from sglang_pd_fabric.fabric.topology.assign import Assignment, Placement, assign
from sglang_pd_fabric.fabric.topology.model import Core, Gpu, Nic, Topology
from sglang_pd_fabric.fabric.topology.override import (
    Override,
    OverrideError,
    parse_override,
    placement_for,
)
from sglang_pd_fabric.fabric.topology.scan import scan

__all__ = [
    "Assignment",
    "Core",
    "Gpu",
    "Nic",
    "Override",
    "OverrideError",
    "Placement",
    "Topology",
    "assign",
    "parse_override",
    "placement_for",
    "scan",
]
