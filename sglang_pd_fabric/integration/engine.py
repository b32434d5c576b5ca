"""Opens this rank's transfer engine the way the settings say, and registers the KV pool with it."""

import logging
import math
import socket
from collections.abc import Sequence
from typing import NamedTuple

from sglang_pd_fabric.fabric.address import describe_address
from sglang_pd_fabric.fabric.availability import Machine, best, require
from sglang_pd_fabric.fabric.engine import Engine, Region
from sglang_pd_fabric.fabric.library import Library, open_library
from sglang_pd_fabric.fabric.memory import CudaMemory, Memory, describe, find_driver
from sglang_pd_fabric.fabric.memory.cuda import Driver
from sglang_pd_fabric.fabric.placing import Plan, Rank, Said, plan_engine
from sglang_pd_fabric.fabric.profiles import PROFILES, Profile
from sglang_pd_fabric.fabric.registration import Progress
from sglang_pd_fabric.fabric.topology import scan
from sglang_pd_fabric.fabric.topology.cpulist import format_cpulist
from sglang_pd_fabric.fabric.topology.interfaces import read_interfaces
from sglang_pd_fabric.fabric.topology.override import IB_DEVICE_FLAG
from sglang_pd_fabric.integration.trace import ENGINE_EVENTS
from sglang_pd_fabric.messenger.link import Patience
from sglang_pd_fabric.settings import Settings, variable

logger = logging.getLogger(__name__)

LOCAL_ADDRESS = "SGLang's local address (SGLANG_HOST_IP, HOST_IP, or the first interface)"
PROGRESS_S = 2.0  # between two lines about a registration that takes long


def open_engine(
    settings: Settings,
    host: str,
    ib_device: str | None = None,
    rank: Rank | None = None,
    progress_word: int = 0,
) -> Engine:
    """Opens the NICs of this rank and starts its I/O thread near them.

    Args:
        host: address to bind to where the settings name none.
        ib_device: SGLang's ``--disaggregation-ib-device``; SGLANG_PD_FABRIC_NICS wins over it.
        rank: whom it serves; None: the CPU.
        progress_word: address of the word that a GPU stores its progress into; 0: there is none.

    Raises:
        LibfabricNotFoundError: there is no libfabric.
        FabricError: the provider cannot be used here, or what the user named; the message says which and why.
    """
    library = open_library(settings.libfabric or None)
    profile = choose_profile(settings, library)
    rank = rank or Rank()
    plan = plan_engine(
        profile,
        library.providers(),
        scan(),
        read_interfaces(),
        rank,
        nics=_said("nics", settings.nics) if settings.nics else Said(IB_DEVICE_FLAG, ib_device or ""),
        host=_said("host", settings.host) if settings.host else Said(LOCAL_ADDRESS, _numeric(host)),
        cpus=_said("cpus", settings.cpus),
    )
    engine = Engine(
        library,
        profile,
        sources=[nic.source for nic in plan.nics],
        domains=[nic.domain for nic in plan.nics],
        gpu=rank.address is not None,
        slots=settings.slots,
        spin=settings.spin_us / 1e6,
        stall=float(settings.stall_s),
        absence=Patience().silence,
        limit=float(settings.limit_s),
        # A GPU cannot wake a thread that sleeps.
        gate_spin=math.inf if progress_word else settings.spin_us / 1e6,
        progress_word=progress_word,
        share_slots=settings.same_host != "provider",
        cpus=plan.cpus,
        trace=ENGINE_EVENTS if settings.trace else 0,
    )
    logger.info("Fabric engine: %s", describe_engine(engine, library, plan))
    if any(nic.emulated for nic in engine.nics):
        logger.warning("This NIC, or this libfabric, EMULATES remote writes: expect a fraction of its speed.")
    return engine


def _said(field: str, text: str) -> Said:
    return Said(variable(field), text)


def _numeric(host: str) -> str:
    """SGLang's local address may be a host name; endpoints are bound to numbers."""
    try:
        return str(socket.getaddrinfo(host, None)[0][4][0])
    except OSError:
        return host


def choose_profile(settings: Settings, library: Library) -> Profile:
    """The profile that the setting names; for ``auto`` the best that works here, aloud when that is tcp.

    Raises:
        ProviderMissingError: the named one, or any, cannot be used; the message says why and how to fix it.
    """
    if settings.provider != "auto":
        require(PROFILES[settings.provider], library)
        return PROFILES[settings.provider]
    profile, passed_over = best(library.version, library.providers(), Machine.read())
    if profile.device_driver is None:
        logger.warning(
            "NO RDMA NIC IS USED: KV pages go over %s, through the kernel, many times slower than a NIC. %s. "
            "If that is meant, set SGLANG_PD_FABRIC_PROVIDER=%s.",
            profile.name,
            "; ".join(passed_over),
            profile.name,
        )
    return profile


def describe_engine(engine: Engine, library: Library, plan: Plan) -> str:
    """One line: provider, NICs with their addresses, CPUs, library, and why these."""
    nics = "; ".join(
        f"{nic.domain} at {describe_address(nic.address)} ({nic.provider}, {chosen.reason})"
        for nic, chosen in zip(engine.nics, plan.nics, strict=True)
    )
    cpus = f"on CPUs {format_cpulist(plan.cpus)}" if plan.cpus else "not pinned"
    major, minor = library.version
    origin = f"libfabric {major}.{minor} at {library.path} ({library.origin})"
    return f"provider {engine.profile.name}; {nics}; I/O thread {cpus} ({plan.cpus_reason}); {origin}"


class Pool(NamedTuple):
    """The buffers of SGLang that are registered, and the driver that knows those on a GPU."""

    memories: list[Memory]
    driver: Driver | None

    @classmethod
    def find(cls, addresses: Sequence[int], sizes: Sequence[int]) -> "Pool":
        """Finds out where the buffers lie.

        Raises:
            FabricError: one of them cannot be registered, or nobody can tell what it is.
        """
        driver = find_driver()
        pairs = zip(addresses, sizes, strict=True)
        return cls([describe(address, nbytes, driver) for address, nbytes in pairs], driver)

    @property
    def gpu(self) -> bool:
        """Whether a part of it is memory of a GPU."""
        return any(isinstance(memory, CudaMemory) for memory in self.memories)


def register_pool(engine: Engine, pool: Pool) -> list[Region]:
    """A region for each buffer. Logs how far it is while that takes long, and one line at the end.

    Raises:
        FabricError: the provider refused one.
    """
    last = Progress(0, 0, 0.0)
    logged_s = 0.0

    def note(now: Progress) -> None:
        nonlocal last, logged_s
        last = now
        if now.bytes_done < now.bytes_total and now.seconds - logged_s >= PROGRESS_S:
            logged_s = now.seconds
            logger.info("Registering memory: %.1f of %.1f GB", now.bytes_done / 1e9, now.bytes_total / 1e9)

    regions = engine.register_all(pool.memories, driver=pool.driver, progress=note)
    logger.info("%s", describe_registration(regions, pool, len(engine.nics), last))
    return regions


def describe_registration(regions: Sequence[Region], pool: Pool, nics: int, end: Progress) -> str:
    """One line: how much, with what, how fast, and by which way where it is memory of a GPU."""
    pairs = zip(regions, pool.memories, strict=True)
    on_gpu = [region for region, memory in pairs if isinstance(memory, CudaMemory)]
    by_dmabuf = sum(region.by_dmabuf for region in on_gpu)
    way = f"; of {len(on_gpu)} on a GPU {by_dmabuf} by dmabuf" if on_gpu else ""
    speed = end.bytes_total / end.seconds / 1e9 if end.seconds else 0.0
    return (
        f"Registered {end.bytes_total / 1e9:.3g} GB in {len(regions)} regions with {nics} "
        f"NIC{'s' * (nics != 1)} in {end.seconds:.3g} s ({speed:.3g} GB/s){way}"
    )
