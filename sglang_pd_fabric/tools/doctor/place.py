"""What the checks look at: this machine, or the files of another one below a folder."""

import importlib.metadata
import resource
from dataclasses import dataclass
from pathlib import Path

from sglang_pd_fabric.fabric.topology import Topology, scan
from sglang_pd_fabric.fabric.topology.interfaces import Interfaces, read_interfaces
from sglang_pd_fabric.settings import Settings


@dataclass(frozen=True)
class Place:
    """Where to look.

    Attributes:
        settings: ours, from the environment.
        root: of ``/proc``, ``/sys`` and ``/dev``.
        topology: GPUs, NICs and cores.
        interfaces: network interfaces of this process's namespace.
        open_files: limit of file descriptors.
    """

    settings: Settings
    root: Path
    topology: Topology
    interfaces: Interfaces
    open_files: int

    @classmethod
    def here(cls, settings: Settings) -> "Place":
        """This machine."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return cls(settings, Path("/"), scan(), read_interfaces(), limit)

    def read(self, path: str) -> str:
        """A file's text without white space around it; empty if it cannot be read."""
        try:
            return (self.root / path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def modules(self) -> set[str]:
        """Loaded kernel modules."""
        return {line.split()[0] for line in self.read("proc/modules").splitlines()}


def installed(package: str) -> str:
    """The version of an installed package; empty if it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
