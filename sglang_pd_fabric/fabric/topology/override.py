"""What a user says instead of our own choice, in SGLang's ``--disaggregation-ib-device`` syntax.

`read_override` knows the syntax, whatever the names mean; `parse_override` is for RDMA devices.

A list (``mlx5_0,mlx5_1``) names the NICs of the node; they are divided among its GPUs by distance, like those
that we would have chosen. A mapping (``{"0": "mlx5_0,mlx5_1", "1": "mlx5_2"}``, or the path of a ``.json``
file that holds one) names the NICs of each GPU, and is followed to the letter; its keys are the GPU numbers
that the process sees, after ``CUDA_VISIBLE_DEVICES``.
"""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.topology.assign import Assignment, NicUse, Placement, assign
from sglang_pd_fabric.fabric.topology.model import Topology
from sglang_pd_fabric.fabric.topology.scan import read_text
from sglang_pd_fabric.fabric.topology.usable import LeftOut, why_not_able

IB_DEVICE_FLAG = "--disaggregation-ib-device"


class OverrideError(FabricError):
    """NICs were named that cannot be used; the message has the flag, the value, and what there is."""


@dataclass(frozen=True)
class Override:
    """The NICs that a user named, checked against the machine.

    Attributes:
        flag: the flag or environment variable that named them.
        value: what it said.
        everywhere: NICs for all GPUs; empty if there is a mapping.
        per_gpu: NICs by the GPU number that the process sees; empty if there is a list.
    """

    flag: str
    value: str
    everywhere: tuple[str, ...]
    per_gpu: Mapping[int, tuple[str, ...]]

    def names(self, gpu_number: int) -> tuple[str, ...]:
        """The NICs of a GPU, or with a list all that were named.

        Raises:
            OverrideError: the mapping has no entry for this GPU.
        """
        if self.everywhere:
            return self.everywhere
        if gpu_number not in self.per_gpu:
            known = ", ".join(map(str, sorted(self.per_gpu)))
            raise OverrideError(f"{self.flag}={self.value}: no entry for GPU {gpu_number}, only for {known}")
        return self.per_gpu[gpu_number]


def parse_override(
    text: str | None,
    topology: Topology,
    flag: str = IB_DEVICE_FLAG,
    openable: Collection[str] | None = None,
) -> Override | None:
    """Reads and checks what a user wrote about RDMA devices.

    Args:
        text: the value; None or blank: nothing was said.
        topology: the machine, to check the names.
        flag: the flag or environment variable, for messages.
        openable: RDMA devices that libfabric offers to this process; None: not asked.

    Raises:
        OverrideError: it cannot be read, or names what this machine lacks or what cannot carry KV pages.
    """
    return read_override(
        text,
        flag,
        lambda name: _problem(name, topology, openable),
        lambda: _what_there_is(topology, openable),
    )


def read_override(
    text: str | None, flag: str, problem: Callable[[str], str], what_there_is: Callable[[], str]
) -> Override | None:
    """Reads a list or a mapping of names, and checks each.

    Args:
        text: the value; None or blank: nothing was said.
        flag: the flag or environment variable, for messages.
        problem: why a name cannot be used; empty if it can.
        what_there_is: the end of every message: what could be named.

    Raises:
        OverrideError: it cannot be read, or a name cannot be used.
    """
    value = (text or "").strip()
    if not value:
        return None

    def wrong(what: str) -> OverrideError:
        return OverrideError(f"{flag}={value}: {what}. {what_there_is()}")

    def names(part: str, whose: str) -> tuple[str, ...]:
        # As in SGLang: blanks and repetitions do no harm.
        found = tuple(dict.fromkeys(name for item in part.split(",") if (name := item.strip())))
        if not found:
            raise wrong(f"no NIC is named{whose}")
        if problems := [text for name in found if (text := problem(name))]:
            raise wrong("; ".join(problems) + whose)
        return found

    if not value.endswith(".json") and not value.startswith("{"):
        return Override(flag, value, names(value, ""), {})
    try:
        mapping = json.loads(read_text(value) if value.endswith(".json") else value)
    except OSError as error:
        raise wrong(f"the file cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise wrong(f"not valid JSON ({error})") from None
    if not isinstance(mapping, dict) or not mapping:
        raise wrong(f'expected a mapping like {{"0": "mlx5_0,mlx5_1", "1": "mlx5_2"}}, not {mapping!r}')
    per_gpu = {}
    for key, part in mapping.items():
        if not key.isdecimal() or not isinstance(part, str):
            raise wrong(f"{json.dumps({key: part})} is not a GPU number with a string of NIC names")
        per_gpu[int(key)] = names(part, f" (GPU {key})")
    return Override(flag, value, (), per_gpu)


def placement_for(
    topology: Topology,
    address: str | None,
    gpu_number: int = 0,
    override: Override | None = None,
    openable: Collection[str] | None = None,
) -> Placement:
    """NICs and cores of one rank: all that the engine of a rank needs to know.

    Args:
        topology: the machine.
        address: PCI address of the rank's GPU; None: it works on the CPU.
        gpu_number: the number under which the process sees its GPU (only a mapping asks for it).
        override: what the user said.
        openable: RDMA devices that libfabric offers to this process; None: not asked.

    Raises:
        OverrideError: the mapping has no entry for this GPU.
    """
    only = override.everywhere if override and override.everywhere else None
    placement = assign(topology, openable, only).placement(address)
    if override is None:
        return placement
    if only:
        uses = tuple(replace(use, reason=f"{use.reason} ({override.flag})") for use in placement.nics)
        return replace(placement, nics=uses)
    nics = {nic.name: nic for nic in topology.nics}
    uses = tuple(
        NicUse(nics[name], f"named by {override.flag} for GPU {gpu_number}")
        for name in override.names(gpu_number)
    )
    return replace(placement, nics=uses)


def assign_as_told(topology: Topology, override: Override | None) -> Assignment:
    """The whole machine as a user wants it, to look at: all GPUs are visible, numbered by PCI address."""
    if override is None or override.everywhere:
        return assign(topology, only=override.everywhere if override else None)
    assignment = assign(topology)
    placements = tuple(
        placement_for(topology, placement.gpu.address if placement.gpu else None, number, override)
        if number in override.per_gpu
        else replace(placement, nics=())
        for number, placement in enumerate(assignment.placements)
    )
    used = {use.nic for placement in placements for use in placement.nics}
    nics = sorted(topology.nics, key=lambda nic: nic.order)
    left_out = tuple(LeftOut(nic, f"not named by {override.flag}") for nic in nics if nic not in used)
    return replace(assignment, placements=placements, left_out=left_out)


def _problem(name: str, topology: Topology, openable: Collection[str] | None) -> str:
    for nic in topology.nics:
        if nic.name == name:
            reason = why_not_able(nic, openable)
            return f"{name} cannot be used: {reason}" if reason else ""
    return f"there is no {name}"


def _what_there_is(topology: Topology, openable: Collection[str] | None) -> str:
    nics = sorted(topology.nics, key=lambda nic: nic.order)
    able = [nic.name for nic in nics if not why_not_able(nic, openable)]
    if not able:
        return f"This machine has no RDMA device that can be used ({topology.source}/class/infiniband)"
    return f"RDMA devices here: {', '.join(able)}"
