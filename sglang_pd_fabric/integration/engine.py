"""Opens this rank's transfer engine the way the settings say, and registers the KV pool with it."""

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

from sglang_pd_fabric.fabric.availability import Machine, best, require
from sglang_pd_fabric.fabric.engine import Engine, Region
from sglang_pd_fabric.fabric.library import Library, open_library
from sglang_pd_fabric.fabric.memory import CudaMemory, Memory, describe, find_driver
from sglang_pd_fabric.fabric.memory.cuda import Driver
from sglang_pd_fabric.fabric.profiles import PROFILES, Profile
from sglang_pd_fabric.fabric.registration import Progress
from sglang_pd_fabric.settings import Settings

logger = logging.getLogger(__name__)

PROGRESS_S = 2.0  # between two lines about a registration that takes long


def open_engine(settings: Settings, host: str, *, gpu: bool, progress_word: int = 0) -> Engine:
    """Opens the NICs of this rank and starts its I/O thread.

    Args:
        host: address to bind to where the settings name none.
        gpu: memory of a GPU will be registered.
        progress_word: address of the word that a GPU stores its progress into; 0: there is none.

    Raises:
        LibfabricNotFoundError: there is no libfabric.
        FabricError: the provider cannot be used here; the message says which and why.
    """
    library = open_library(settings.libfabric or None)
    profile = choose_profile(settings, library)
    source = (settings.host or host) if profile.binds_host else None
    engine = Engine(
        library,
        profile,
        sources=[source],
        gpu=gpu,
        slots=settings.slots,
        spin=settings.spin_us / 1e6,
        stall=float(settings.stall_s),
        # A GPU cannot wake a thread that sleeps.
        gate_spin=math.inf if progress_word else settings.spin_us / 1e6,
        progress_word=progress_word,
        share_slots=settings.same_host != "provider",
    )
    logger.info("Fabric engine: %s", describe_engine(engine, library))
    if any(nic.emulated for nic in engine.nics):
        logger.warning("This NIC, or this libfabric, EMULATES remote writes: expect a fraction of its speed.")
    return engine


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


def describe_engine(engine: Engine, library: Library) -> str:
    """One line: provider, NICs, library."""
    nics = ", ".join(f"{nic.domain} ({nic.provider}, fabric {nic.fabric})" for nic in engine.nics)
    major, minor = library.version
    origin = f"libfabric {major}.{minor} at {library.path} ({library.origin})"
    return f"provider {engine.profile.name} on {nics}; {origin}"


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
