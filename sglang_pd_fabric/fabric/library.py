"""Finds libfabric and opens it, once per process.

Two libfabrics in one process fight (the second finds no EFA device), so one that is already loaded
wins. Otherwise the order is: the explicit setting, the EFA installer's, the one that a wheel carries,
the system's. The wheel comes before the system's because it is there only where somebody asked for
it (extra ``libfabric``), while the system's is often there only because our headers pull it in, and
is old (Debian 12: 1.17).
"""

import importlib.metadata
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sglang_pd_fabric.fabric._core import ffi, lib
from sglang_pd_fabric.fabric.errors import FabricError, LibfabricNotFoundError

SONAME = "libfabric.so.1"
EFA_INSTALLER = (Path("/opt/amazon/efa/lib"), Path("/opt/amazon/efa/lib64"))
CARRIER_WHEELS = ("mpich",)


class Candidate(NamedTuple):
    path: str
    origin: str


class ProviderInfo(NamedTuple):
    """One RDM endpoint that libfabric offers on this machine."""

    provider: str
    fabric: str
    domain: str


@dataclass(frozen=True)
class Library:
    """An open libfabric."""

    handle: Any
    path: str
    origin: str

    @property
    def version(self) -> tuple[int, int]:
        return _version(lib.spf_library_version(self.handle))

    def providers(self) -> list[ProviderInfo]:
        """Endpoints that can do what we need.

        Raises:
            FabricError: ``fi_getinfo`` failed.
        """
        room = 1 << 20
        text, error = ffi.new("char[]", room), ffi.new("spf_error *")
        check(lib.spf_library_providers(self.handle, text, room, error), error)
        lines = ffi.string(text).decode().splitlines()
        return [ProviderInfo(*line.split("\t")) for line in lines]


def header_version() -> tuple[int, int]:
    """The libfabric version whose headers the core was compiled with."""
    return _version(lib.spf_header_version())


def check(code: int, error: Any) -> None:
    """Raises what a function of the core reported.

    Raises:
        FabricError: ``code`` is not 0.
    """
    if code:
        raise FabricError(ffi.string(error.text).decode(errors="replace"), code)


def candidates(explicit: str | None) -> Iterator[Candidate]:
    """Places to look for libfabric, best first."""
    for path in _loaded():
        yield Candidate(path, "already loaded in this process")
    if explicit:
        yield Candidate(explicit, "SGLANG_PD_FABRIC_LIBFABRIC")
        return
    for folder in EFA_INSTALLER:
        yield Candidate(str(folder / SONAME), "EFA installer")
    for wheel in CARRIER_WHEELS:
        yield from _carried_by(wheel)
    yield Candidate(SONAME, "system")


def open_library(explicit: str | None = None) -> Library:
    """Opens the first libfabric that works; the same one for every call in this process.

    Raises:
        LibfabricNotFoundError: none works; the message lists every place and its reason.
    """
    with _lock:
        if not _opened:
            _opened.append(_open_first(explicit))
        return _opened[0]


_lock = threading.Lock()
_opened: list[Library] = []


def _open_first(explicit: str | None) -> Library:
    tried = []
    for candidate in candidates(explicit):
        out, error = ffi.new("spf_library **"), ffi.new("spf_error *")
        if lib.spf_library_open(candidate.path.encode(), out, error) == 0:
            return Library(out[0], candidate.path, candidate.origin)
        tried.append(f"  {candidate.path} ({candidate.origin}): {ffi.string(error.text).decode()}")
    raise LibfabricNotFoundError(
        "no usable libfabric (1.17 or newer) was found. Looked at:\n"
        + "\n".join(tried)
        + "\nInstall the EFA installer's, your system's (Debian, Ubuntu: libfabric1) or the extra "
        "'sglang-pd-fabric[libfabric]', or name one with SGLANG_PD_FABRIC_LIBFABRIC=/path/libfabric.so.1"
    )


def _loaded() -> list[str]:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if "/libfabric.so" in line}
    return sorted(paths)


def _carried_by(wheel: str) -> Iterator[Candidate]:
    try:
        files = importlib.metadata.files(wheel) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.name == SONAME:
            yield Candidate(str(Path(str(file.locate())).resolve()), f"wheel {wheel}")


def _version(packed: int) -> tuple[int, int]:
    return packed >> 16, packed & 0xFFFF
