"""The CPU platform: unmodified SGLang serves small models on any machine, without a GPU.

SGLang's own CPU engine needs kernels that no package registry ships, so we bring an out-of-tree platform
on which every operation takes its plain torch form. It exists for development, tests and the local demo;
the transfer backend itself does not depend on it.

This module is what the entry point ``sglang.srt.platforms: pd_fabric_cpu`` names. SGLang loads it in every
server of a machine where we are installed, so it stays tiny and does nothing unless it was asked for.
"""

PLATFORM_NAME = "pd_fabric_cpu"


def selected() -> bool:
    """Whether this process belongs to a server that selected our platform with ``SGLANG_PLATFORM``."""
    from sglang.srt.environ import envs

    return bool(envs.SGLANG_PLATFORM.get() == PLATFORM_NAME)


def activate() -> str | None:
    """Name our platform class, but only to a server that selected it.

    Without a selection SGLang activates every platform that answers; answering then would take a GPU
    server away from its GPU.
    """
    return "sglang_pd_fabric.integration.cpu.platform.FabricCpuPlatform" if selected() else None
