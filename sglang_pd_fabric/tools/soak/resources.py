"""What a server holds when it has nothing to do: memory, descriptors, threads, pages, slots."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil  # type: ignore[import-untyped]

from sglang_pd_fabric.tools.demo.metrics import sample_sums
from sglang_pd_fabric.tools.demo.processes import Server

# Nothing of these may be left when nothing is to do.
EMPTY_WHEN_IDLE = (
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:num_prefill_inflight_queue_reqs",
    "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang:num_decode_prealloc_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
    "sglang:num_decode_deferred_kv_release_reqs",
    "sglang:kv_used_tokens",
    "sglang_pd_fabric:rooms",
    "sglang_pd_fabric:remembered",
    "sglang_pd_fabric:slots_used",
    "sglang_pd_fabric:slots_quarantined",
)
# These are as many as at the beginning.
SAME_WHEN_IDLE = ("sglang_pd_fabric:slots_free", "sglang_pd_fabric:credits_free", "sglang_pd_fabric:peers")

# Beyond the state after the warm-up. Memory: what allocators and caches of a server under load come to.
RSS_MORE_MB = 200.0
FDS_MORE = 4
THREADS_MORE = 2
# Growth of a server that lived long, once it had warmed up.
RSS_MB_PER_MINUTE = 8.0
SLOPE_AFTER_S, SLOPE_OVER_S = 120.0, 300.0

_SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Holdings:
    """Sums over a server's processes.

    Attributes:
        counts: gauges by name, where the server has them.
        kinds: descriptors and threads by process and kind, to tell which are the new ones.
    """

    fds: int = 0
    threads: int = 0
    rss_mb: float = 0.0
    shm: int = 0
    counts: Mapping[str, float] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)


class Memory(NamedTuple):
    """Resident memory of one start of a server at one time."""

    pid: int
    at_s: float
    rss_mb: float


def rss_mb(server: Server) -> float:
    """Resident memory of a server's processes now, in MB."""
    total = 0
    for process in _processes(server):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / 1e6


def holdings(server: Server) -> Holdings:
    """All that a server holds now; it must live and answer."""
    processes = _processes(server)
    page = httpx.get(f"{server.url}/metrics", timeout=30, follow_redirects=True).text
    sums = sample_sums(page)
    return Holdings(
        fds=sum(process.num_fds() for process in processes),
        threads=sum(process.num_threads() for process in processes),
        rss_mb=sum(process.memory_info().rss for process in processes) / 1e6,
        shm=len(shm_entries([process.pid for process in processes])),
        counts={name: sums[name] for name in (*EMPTY_WHEN_IDLE, *SAME_WHEN_IDLE) if name in sums},
        kinds=kinds_of(processes),
    )


def _processes(server: Server) -> list[psutil.Process]:
    found = []
    for pid in server.family():
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def kinds_of(processes: Sequence[psutil.Process]) -> dict[str, int]:
    """Descriptors by what they point to, threads by their names, without what differs from start to start."""
    found: Counter[str] = Counter()
    for process in processes:
        name, folder = process.name(), Path(f"/proc/{process.pid}")
        for link in folder.glob("fd/*"):
            with contextlib.suppress(OSError):  # closed meanwhile
                found[f"{name} descriptor {_same_in_every_start(str(link.readlink()))}"] += 1
        for comm in folder.glob("task/*/comm"):
            with contextlib.suppress(OSError):
                found[f"{name} thread {_same_in_every_start(comm.read_text().strip())}"] += 1
    return dict(found)


def _same_in_every_start(text: str) -> str:
    """Without numbers (``prefill-0.9.log``: the log of the ninth start) and names of temporary folders."""
    return re.sub(r"\d+(\.\d+)*", "N", re.sub(r"/tmp/tmp\w+", "/tmp/tmpX", text))


def shm_entries(pids: Sequence[int]) -> list[str]:
    """Names of our endpoints in /dev/shm that belong to these processes."""
    names = {str(pid) for pid in pids}
    return [path.name for path in _SHM.glob("pd_fabric.*") if path.name.split(".")[2] in names]


def busy(held: Holdings) -> dict[str, float]:
    """What is not over yet."""
    return {name: held.counts[name] for name in EMPTY_WHEN_IDLE if held.counts.get(name)}


def leaks(name: str, base: Holdings, end: Holdings) -> list[str]:
    """What an idle server holds beyond what it held after its warm-up, one line each."""
    found = [f"{name}: {what} is {value:g} with nothing to do" for what, value in busy(end).items()]
    for what in SAME_WHEN_IDLE:
        before, after = base.counts.get(what), end.counts.get(what)
        if before != after:
            found.append(f"{name}: {what} is {after}, was {before}")
    for what, before, after, more in (
        ("descriptors", base.fds, end.fds, FDS_MORE),
        ("threads", base.threads, end.threads, THREADS_MORE),
        ("entries in /dev/shm", base.shm, end.shm, 0),
        ("MB of memory", base.rss_mb, end.rss_mb, RSS_MORE_MB),
    ):
        if after > before + more:
            found.append(
                f"{name}: {after:.0f} {what}, {before:.0f} after the warm-up and {more:g} more at most"
            )
    if any("descriptors" in line or "threads" in line for line in found):
        new = Counter(end.kinds) - Counter(base.kinds)
        found[-1] += f"; new: {', '.join(f'{count} {kind}' for kind, count in sorted(new.items()))}"
    return found


def growth(samples: Sequence[Memory]) -> float | None:
    """MB a minute that one start of a server grew, from 2 minutes on; None: it lived too short to tell."""
    from statistics import linear_regression

    if not samples:
        return None
    later = [each for each in samples if each.at_s >= samples[0].at_s + SLOPE_AFTER_S]
    if len(later) < 2 or later[-1].at_s - later[0].at_s < SLOPE_OVER_S:
        return None
    slope, _ = linear_regression([each.at_s for each in later], [each.rss_mb for each in later])
    return slope * 60
