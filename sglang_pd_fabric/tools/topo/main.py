"""`sglang-pd-fabric topo`: shows GPU, NICs, NUMA node and cores with the reasons, as text, JSON or SVG.

Reads this machine, or a sysfs tree copied from another one, so that a choice can be explained elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_pd_fabric.fabric.topology import OverrideError, parse_override, scan
from sglang_pd_fabric.fabric.topology.cpulist import parse_cpulist
from sglang_pd_fabric.fabric.topology.override import IB_DEVICE_FLAG, assign_as_told
from sglang_pd_fabric.fabric.topology.render import to_data, to_text
from sglang_pd_fabric.fabric.topology.scan import SYSFS, online_cpus
from sglang_pd_fabric.tools.topo.draw import draw


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    parser.add_argument(
        "--sysfs", type=Path, default=SYSFS, metavar="DIR", help=f"tree to read (default: {SYSFS})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it")
    parser.add_argument(
        "--cpus",
        type=parse_cpulist,
        metavar="LIST",
        help="CPUs that may be used, like 0-3,8 (default: this process's; with --sysfs: all)",
    )
    parser.add_argument(
        IB_DEVICE_FLAG,
        metavar="NICS",
        help="what you would give to SGLang: a list of NICs, or a mapping (GPUs numbered by PCI address)",
    )


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    allowed = options.cpus
    if allowed is None and options.sysfs != SYSFS:
        allowed = online_cpus(options.sysfs)
    topology = scan(options.sysfs, allowed)
    try:
        override = parse_override(options.disaggregation_ib_device, topology)
    except OverrideError as error:
        print(error, file=sys.stderr)
        return 1
    assignment = assign_as_told(topology, override)
    if options.svg:
        try:
            options.svg.write_text(draw(assignment))
        except OSError as error:
            problem = f"cannot be written ({error.strerror}); give a file in a folder that exists"
            print(f"--svg {options.svg}: {problem}", file=sys.stderr)
            return 1
    print(json.dumps(to_data(assignment), indent=2) if options.json else to_text(assignment))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the flags and carry out the command."""
    parser = argparse.ArgumentParser(
        prog="sglang-pd-fabric topo", description="Show which NICs and cores each GPU would use, and why."
    )
    add_arguments(parser)
    return run(parser.parse_args(arguments))
