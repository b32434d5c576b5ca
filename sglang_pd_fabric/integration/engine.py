"""Opens this rank's transfer engine the way the settings say, and registers the KV pool with it."""

import logging
import math
from collections.abc import Sequence

from sglang_pd_fabric.fabric.availability import Machine, best, require
from sglang_pd_fabric.fabric.engine import Engine, Region
from sglang_pd_fabric.fabric.library import Library, open_library
from sglang_pd_fabric.fabric.profiles import PROFILES, Profile
from sglang_pd_fabric.settings import Settings

logger = logging.getLogger(__name__)


def open_engine(settings: Settings, host: str, progress_word: int = 0) -> Engine:
    """Opens the NICs of this rank and starts its I/O thread.

    Args:
        host: address to bind to where the settings name none.
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


def register_buffers(engine: Engine, addresses: Sequence[int], sizes: Sequence[int]) -> list[Region]:
    """A region for each buffer.

    Raises:
        FabricError: the provider refused one.
    """
    return [engine.register(address, size) for address, size in zip(addresses, sizes, strict=True)]
