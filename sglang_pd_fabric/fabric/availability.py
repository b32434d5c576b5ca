"""Which profiles this machine and this libfabric can serve, what else they offer, and what is missing.

A provider that was asked for and is not there ends the server at its start: falling back in silence to
tcp costs a factor of ten, and nobody is told. ``root`` and ``memlock`` make every answer testable.
"""

import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sglang_pd_fabric.fabric import shared_memory
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import Library, ProviderInfo
from sglang_pd_fabric.fabric.memory.locked import UNLIMITED, UNLOCK
from sglang_pd_fabric.fabric.profiles import PREFERENCE, PROFILES, Profile, Version


class ProviderMissingError(FabricError):
    """The provider cannot be used here; the message says what is missing and how to fix it."""


class Feature(NamedTuple):
    available: bool
    why: str


class Machine(NamedTuple):
    """What decides whether an RDMA provider can work."""

    devices: dict[str, str]  # name in /sys/class/infiniband -> kernel driver
    has_device_nodes: bool
    memlock: int  # bytes, UNLIMITED for no limit
    shared_memory: int  # bytes that are free in /dev/shm
    cpus: int

    @classmethod
    def read(cls, root: Path = Path("/")) -> "Machine":
        folder = root / "sys/class/infiniband"
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        nodes = root / "dev/infiniband"
        shm = root / "dev/shm"
        room = os.statvfs(shm) if shm.is_dir() else None
        return cls(
            devices={name: (folder / name / "device/driver").resolve().name for name in names},
            has_device_nodes=nodes.is_dir() and any(nodes.glob("uverbs*")),
            memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
            shared_memory=room.f_bavail * room.f_frsize if room else 0,
            cpus=os.cpu_count() or 1,
        )

    def devices_for(self, profile: Profile) -> list[str]:
        """Devices that the profile could use."""
        if profile.device_driver is None:
            return []
        # Every device but EFA's is reached through verbs.
        if not profile.device_driver:
            return [name for name, driver in self.devices.items() if driver != "efa"]
        return [name for name, driver in self.devices.items() if driver == profile.device_driver]


def offered(profile: Profile, found: Iterable[ProviderInfo]) -> list[ProviderInfo]:
    """The endpoints of ``fi_getinfo`` that the profile would take."""
    layered = (profile.provider, profile.provider + ";ofi_rxm")
    return [
        info
        for info in found
        if info.provider in layered and (not profile.fabric or info.fabric == profile.fabric)
    ]


def problems(
    profile: Profile, version: Version, found: Iterable[ProviderInfo], machine: Machine
) -> list[str]:
    """Why the profile cannot be used, each with its fix; empty when it can."""
    found = list(found)
    if version >= profile.minimum and offered(profile, found):
        return []
    lines = []
    if version < profile.minimum:
        lines.append(
            f"libfabric is {_dotted(version)}, {profile.name} needs {_dotted(profile.minimum)} or newer: "
            "install a newer one (for EFA: the EFA installer) or name it with SGLANG_PD_FABRIC_LIBFABRIC"
        )
    names = sorted({info.provider for info in found})
    wanted = profile.provider + (f" (fabric {profile.fabric})" if profile.fabric else "")
    lines.append(f"fi_getinfo offers no {wanted}; it offers {', '.join(names) or 'nothing'}")
    if profile.device_driver is not None:
        lines += _device_problems(profile, machine)
    needed = machine.cpus * shared_memory.ENDPOINT_BYTES
    if profile.single_host and machine.shared_memory < needed:
        lines.append(
            f"/dev/shm has {machine.shared_memory >> 20} MiB free, and libfabric wants {needed >> 20} MiB "
            f"(for {machine.cpus} CPUs) before it offers shm: {shared_memory.ENLARGE}"
        )
    return lines


def _device_problems(profile: Profile, machine: Machine) -> list[str]:
    lines = []
    kind = f"of the driver {profile.device_driver}" if profile.device_driver else "for verbs"
    if not machine.devices:
        lines.append(
            "/sys/class/infiniband is empty or absent: there is no RDMA NIC, or its driver is not loaded "
            "(lsmod), or the container does not see it"
        )
    elif not machine.devices_for(profile):
        has = ", ".join(f"{name} ({driver})" for name, driver in machine.devices.items())
        lines.append(f"/sys/class/infiniband has no device {kind}: it has {has}")
    if not machine.has_device_nodes:
        lines.append(
            "/dev/infiniband/uverbs* is absent: pass it to the container (docker: --device=/dev/infiniband; "
            "Kubernetes: the NIC's device plugin)"
        )
    if machine.memlock != UNLIMITED:
        lines.append(
            f"locked memory is limited to {machine.memlock >> 10} KiB, and NICs lock what they may write to: "
            + UNLOCK
        )
    if machine.devices_for(profile) and machine.has_device_nodes:
        lines.append(
            f"{', '.join(machine.devices_for(profile))} would do: this libfabric may be built without "
            f"{profile.provider}, or rdma-core is missing (FI_LOG_LEVEL=info shows why)"
        )
    return lines


def require(profile: Profile, library: Library, machine: Machine | None = None) -> None:
    """Checks that the profile can be used.

    Raises:
        ProviderMissingError: it cannot.
    """
    lines = problems(profile, library.version, library.providers(), machine or Machine.read())
    if lines:
        raise ProviderMissingError(
            f"provider {profile.name} cannot be used on this machine "
            f"(libfabric {_dotted(library.version)} at {library.path}):"
            + "".join(f"\n  - {line}" for line in lines)
            + "\nTo use the best one that works instead, leave SGLANG_PD_FABRIC_PROVIDER unset."
        )


class Choice(NamedTuple):
    """What ``auto`` took, and why nothing better: one line for each better profile."""

    profile: Profile
    passed_over: tuple[str, ...]


def best(version: Version, found: Iterable[ProviderInfo], machine: Machine) -> Choice:
    """The first of ``PREFERENCE`` that works.

    Raises:
        ProviderMissingError: none does.
    """
    found = list(found)
    passed_over: list[str] = []
    for name in PREFERENCE:
        profile = PROFILES[name]
        why = problems(profile, version, found, machine)
        if not why:
            return Choice(profile, tuple(passed_over))
        if profile.device_driver is not None and not machine.devices_for(profile):
            why = ["there is no such NIC in /sys/class/infiniband"]
        passed_over.append(f"{name}: {'; '.join(why)}")
    raise ProviderMissingError(
        "this libfabric offers no provider that we can use:" + "".join(f"\n  - {w}" for w in passed_over)
    )


def features(profile: Profile, version: Version, found: Iterable[ProviderInfo]) -> dict[str, Feature]:
    """What a profile gets from a libfabric of that version: feature -> whether, and why or why not."""
    has = f"libfabric {_dotted(version)}"
    report = {
        "endpoint": Feature(
            version >= profile.minimum and bool(offered(profile, found)),
            f"{has}; it needs {_dotted(profile.minimum)} and an entry of fi_getinfo",
        ),
        "sleep on the queue": Feature(
            profile.wait_fd,
            "its queue has a descriptor" if profile.wait_fd else "an idle I/O thread has to look for itself",
        ),
    }
    if profile.device_driver is not None:
        report["GPU memory by dmabuf"] = _since(version, (1, 20), "FI_MR_DMABUF")
    for option in profile.options:
        report[option.name] = _since(version, option.since, option.purpose)
    for flag in profile.write_flags:
        report[flag.name] = _since(version, flag.since, flag.purpose)
    return report


def _since(version: Version, since: Version, purpose: str) -> Feature:
    if version >= since:
        return Feature(True, purpose)
    return Feature(False, f"libfabric {_dotted(version)}, needs {_dotted(since)}: {purpose}")


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
