"""The kernel's way to write sets of CPUs: ``0-3,8,10-11``."""

from collections.abc import Iterable


def parse_cpulist(text: str) -> frozenset[int]:
    """The CPUs of a list such as ``0-3,8``; an empty text is the empty set.

    Raises:
        ValueError: the text is not such a list.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first:
            cpus.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(cpus)


def format_cpulist(cpus: Iterable[int]) -> str:
    """The shortest list of these CPUs, or ``none``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs) or "none"
