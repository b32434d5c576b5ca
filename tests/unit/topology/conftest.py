"""Machines are written to disk once and read by many tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_pd_fabric.fabric.topology import Assignment, Topology, assign, scan

from .trees import Machine

Look = Callable[[Machine], Topology]


@pytest.fixture(scope="session")
def look(tmp_path_factory: pytest.TempPathFactory) -> Look:
    """Scans a machine, all of whose CPUs are allowed."""
    trees: dict[Machine, Path] = {}

    def scan_machine(machine: Machine) -> Topology:
        if machine not in trees:
            trees[machine] = machine.write(tmp_path_factory.mktemp(machine.name))
        return scan(trees[machine], machine.cpus)

    return scan_machine


def nics_of(assignment: Assignment) -> dict[str, tuple[str, ...]]:
    """Names of the NICs of each GPU."""
    return {placement.address: placement.nic_names for placement in assignment.placements}


def reasons_of(assignment: Assignment) -> dict[str, str]:
    """Why NICs are left out."""
    return {entry.nic.name: entry.reason for entry in assignment.left_out}


def nics_per_gpu(topology: Topology) -> list[int]:
    """How many NICs each GPU has."""
    return [len(placement.nics) for placement in assign(topology).placements]
