"""Keeps started servers for reuse: starting one takes most of a minute, asking it a fraction of a second."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions, Group, Ordinary, Progress
from sglang_pd_fabric.tools.demo.processes import stop_all
from sglang_pd_fabric.tools.demo.servers import ServerOptions
from sglang_pd_fabric.tools.tiny.config import Model

# Schedulers at a time: some 2 GB for the first of a server, 0.9 GB for each further rank.
MOST_PROCESSES = 5


class Pool:
    """Starts a set of servers when it is first asked for and stops the least recently used when full."""

    def __init__(self, logs: Path, progress: Progress, most_processes: int = MOST_PROCESSES) -> None:
        self._logs = logs
        self._progress = progress
        self._most_processes = most_processes
        self._groups: OrderedDict[object, Group] = OrderedDict()
        self._started = 0

    def ordinary(self, model: Model) -> Ordinary:
        """Return the reference server of a model; it never splits a prompt into chunks."""
        options = ServerOptions(model=model, chunked_prefill_size=8192, page_size=1)
        found = self._reuse(("ordinary", model))
        if not isinstance(found, Ordinary):
            self._make_room(1)
            found = Ordinary(options, self._next_logs(), self._progress)
            self._groups["ordinary", model] = found
        return found

    def cluster(self, options: ClusterOptions) -> Cluster:
        """Return a running cluster with exactly these options."""
        key = repr(options)
        found = self._reuse(key)
        if not isinstance(found, Cluster):
            self._make_room(options.processes)
            found = Cluster(options, self._next_logs(), self._progress)
            self._groups[key] = found
        return found

    def stop(self) -> None:
        """Stop all servers."""
        stop_all([server for group in self._groups.values() for server in group.servers])
        self._groups.clear()

    def _reuse(self, key: object) -> Group | None:
        group = self._groups.get(key)
        if group is None:
            return None
        if all(server.alive() for server in group.servers):
            self._groups.move_to_end(key)
            return group
        # A test killed one of them; a cluster with a hole is not what the next one asks for.
        del self._groups[key]
        group.stop()
        return None

    def _make_room(self, wanted: int) -> None:
        while self._groups and self._running() + wanted > self._most_processes:
            self._groups.popitem(last=False)[1].stop()

    def _running(self) -> int:
        return sum(group.processes for group in self._groups.values())

    def _next_logs(self) -> Path:
        self._started += 1
        return self._logs / f"group-{self._started}"
