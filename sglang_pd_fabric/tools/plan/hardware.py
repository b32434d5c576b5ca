"""GPUs from their data sheets, NICs from published measurements."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_pd_fabric.tools.plan.errors import PlanError

GB, TB = 1e9, 1e12


@dataclass(frozen=True)
class Gpu:
    """Peaks: dense bf16 FLOP/s, bytes/s of memory and of NVLink (one direction); memory in bytes."""

    name: str
    bf16_flops: float
    memory: float
    memory_rate: float
    link_rate: float
    has_fp8: bool


@dataclass(frozen=True)
class Nic:
    """All NICs of one GPU together: a write's latency, writes a second, bytes a second."""

    name: str
    latency_s: float
    ops_rate: float
    byte_rate: float

    def write_s(self, nbytes: float) -> float:
        """Seconds of one write alone."""
        return self.latency_s + nbytes / self.byte_rate

    def stream_s(self, writes: float, nbytes: float) -> float:
        """Seconds of many writes of that size each, kept in flight."""
        return writes * max(1 / self.ops_rate, nbytes / self.byte_rate)


# NVIDIA's data sheets, without sparsity.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100", 312 * TB, 80 * GB, 2.039 * TB, 300 * GB, False),
        Gpu("h100", 989 * TB, 80 * GB, 3.35 * TB, 450 * GB, True),
        Gpu("h200", 989 * TB, 141 * GB, 4.8 * TB, 450 * GB, True),
        Gpu("b200", 2250 * TB, 180 * GB, 8.0 * TB, 900 * GB, True),
    )
}
# arXiv 2510.27656, table 2: latency from single writes of 64 KiB to 1 MiB, rate of writes from paged ones of
# 1 KiB, bytes from paged ones of 64 KiB.
NICS = {
    nic.name: nic
    for nic in (
        Nic("efa", 32e-6, 2.1e6, 364e9 / 8),
        Nic("cx7", 11e-6, 11.1e6, 370e9 / 8),
    )
}
_PARTS = ("gbps", "mops", "us")


def load_gpu(name: str) -> Gpu:
    """A GPU by its name.

    Raises:
        PlanError: it is not known.
    """
    if name not in GPUS:
        raise PlanError(f"--gpu {name}: not known; give one of {', '.join(GPUS)}")
    return GPUS[name]


def load_nic(name: str) -> Nic:
    """A NIC by its name, or one's own as ``gbps=200,mops=2,us=30`` (for all NICs of a GPU together).

    Raises:
        PlanError: it is neither.
    """
    if name in NICS:
        return NICS[name]
    parts = dict(part.split("=", 1) for part in name.split(",") if "=" in part)
    try:
        gbps, mops, us = (float(parts[key]) for key in _PARTS)
    except (KeyError, ValueError):
        gbps = mops = us = 0.0
    if min(gbps, mops, us) <= 0:
        raise PlanError(
            f"--nic {name}: not known; give one of {', '.join(NICS)}, or one's own as gbps=200,mops=2,us=30 "
            "(a GPU's NICs together: Gb/s, million writes a second, microseconds of one small write; all "
            "above 0)"
        )
    return Nic(name, us * 1e-6, mops * 1e6, gbps * 1e9 / 8)
