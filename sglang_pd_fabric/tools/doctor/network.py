"""Checks of libfabric, of the NICs, and of addresses and ports."""

import socket
from collections.abc import Iterator
from pathlib import Path

from sglang_pd_fabric.fabric.availability import Machine, best, problems
from sglang_pd_fabric.fabric.errors import FabricError, LibfabricNotFoundError
from sglang_pd_fabric.fabric.library import SONAME, Library, candidates, open_library
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.fabric.topology.model import Nic
from sglang_pd_fabric.settings import variable
from sglang_pd_fabric.tools.doctor.finding import Finding, Level
from sglang_pd_fabric.tools.doctor.place import Place

BOOTSTRAP_PORT = 8998  # default of --disaggregation-bootstrap-port
BRIDGES = ("docker", "br-", "virbr", "cni", "veth")
SYSTEM_FOLDERS = ("usr/lib/*-linux-gnu", "usr/lib64", "usr/local/lib")
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


def libfabric(place: Place) -> Iterator[Finding]:
    """Which libfabric would be used, and what it offers."""
    try:
        library = open_library(place.settings.libfabric or None)
    except LibfabricNotFoundError as error:
        yield Finding("libfabric", Level.FAIL, "none was found", str(error).splitlines()[-1])
        return
    version = ".".join(map(str, library.version))
    yield Finding("libfabric", Level.OK, f"{version} at {library.path} ({library.origin})")
    yield from _copies(place, library)
    yield from _provider(place, library)


def _copies(place: Place, library: Library) -> Iterator[Finding]:
    """Two libfabrics in one process fight: the second one finds no EFA device."""
    ours = Path(library.path).resolve()
    named = [(Path(candidate.path), candidate.origin) for candidate in candidates(place.settings.libfabric)]
    system = [(path, "system") for folder in SYSTEM_FOLDERS for path in place.root.glob(f"{folder}/{SONAME}")]
    others = [
        f"{path} ({origin})"
        for path, origin in (*named, *system)
        if path.is_absolute() and path.exists() and path.resolve() != ours
    ]
    if not others:
        yield Finding("libfabric", Level.OK, f"no second copy of {SONAME} is in the way")
        return
    yield Finding(
        "libfabric",
        Level.WARN,
        f"there are others: {', '.join(dict.fromkeys(others))}",
        "harmless unless something else in the server loads one (nixl, NCCL's OFI plugin): then name that "
        f"one with {variable('libfabric')}",
    )


def _provider(place: Place, library: Library) -> Iterator[Finding]:
    machine = Machine.read()
    asked = place.settings.provider
    try:
        found = library.providers()
        if asked != "auto":
            why = problems(PROFILES[asked], library.version, found, machine)
            text = f"{asked} was asked for and {'cannot be used' if why else 'works'}"
            yield Finding("provider", Level.FAIL if why else Level.OK, text, "; ".join(why))
            return
        choice = best(library.version, found, machine)
    except FabricError as error:
        yield Finding("provider", Level.FAIL, "no provider can be used", str(error))
        return
    slow = choice.profile.device_driver is None
    yield Finding(
        "provider",
        Level.WARN if slow else Level.OK,
        f"auto takes {choice.profile.name}" + (": no RDMA" if slow else ""),
        f"passed over: {'. '.join(choice.passed_over)}" if slow else "",
    )


def nics(place: Place) -> Iterator[Finding]:
    """Links and addresses of RDMA NICs."""
    rdma = [nic for nic in place.topology.nics if nic.rdma]
    if not rdma:
        yield Finding("NICs", Level.WARN, "no RDMA NIC in /sys/class/infiniband", "pages go over tcp or shm")
    for nic in rdma:
        yield _link(nic)
        yield from _gid(place, nic)
    if rdma and not place.exists("dev/infiniband"):
        yield Finding(
            "NICs",
            Level.FAIL,
            "/dev/infiniband is absent",
            "pass it to the container (docker: --device=/dev/infiniband; Kubernetes: the device plugin)",
        )


def _link(nic: Nic) -> Finding:
    states = ", ".join(f"port {p.number} {p.state or '?'} {p.gbps} Gb/s {p.link_layer}" for p in nic.ports)
    text = f"{nic.name} ({nic.driver or 'no driver'}): {states or 'no port'}"
    if any(port.state == "ACTIVE" for port in nic.ports):
        return Finding("NICs", Level.OK, text)
    return Finding("NICs", Level.WARN, text, "it will not be used: bring its link up, or leave it out")


def _gid(place: Place, nic: Nic) -> Iterator[Finding]:
    """Without a GID an Ethernet port cannot be reached by RoCE, nor an EFA at all."""
    for port in nic.ports:
        folder = f"sys/class/infiniband/{nic.name}/ports/{port.number}/gids"
        if port.state != "ACTIVE" or port.link_layer == "InfiniBand" or not place.exists(folder):
            continue
        gids = [place.read(f"{folder}/{path.name}") for path in (place.root / folder).iterdir()]
        if not any(gid and gid != EMPTY_GID for gid in gids):
            yield Finding(
                "NICs",
                Level.FAIL,
                f"{nic.name} port {port.number} has no GID",
                "give its network interface an IP address (RoCE), or reload its driver (EFA)",
            )


def addresses(place: Place) -> Iterator[Finding]:
    """What endpoints and control sockets bind to."""
    host = place.settings.host
    if host:
        why = place.interfaces.problem(host)
        text = f"{variable('host')}={host}" + (f": {why}" if why else "")
        yield Finding(
            "addresses", Level.FAIL if why else Level.OK, text, place.interfaces.what_there_is() * bool(why)
        )
    else:
        named = [name for name, held in place.interfaces.addresses.items() if held and name != "lo"]
        real = [name for name in named if not name.startswith(BRIDGES)]
        text = place.interfaces.what_there_is()
        if not real:
            todo = "only peers on this host can be reached (SGLANG_HOST_IP=127.0.0.1)"
            yield Finding("addresses", Level.WARN, text, todo)
        elif len(real) > 1:
            todo = f"the one of the default route is taken; another: {variable('host')} or SGLANG_HOST_IP"
            yield Finding("addresses", Level.WARN, text, todo)
        else:
            yield Finding("addresses", Level.OK, text)
    yield from _bootstrap_port()


def _bootstrap_port() -> Iterator[Finding]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", BOOTSTRAP_PORT))
        except OSError as error:
            yield Finding(
                "ports",
                Level.WARN,
                f"{BOOTSTRAP_PORT} (prefill's bootstrap port by default) is taken ({error.strerror})",
                "a second prefill on this host needs its own --disaggregation-bootstrap-port",
            )
            return
    yield Finding("ports", Level.OK, f"{BOOTSTRAP_PORT} (--disaggregation-bootstrap-port) is free")
