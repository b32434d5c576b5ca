"""A prefill/decode cluster with its router, and the ordinary server that knows the right answers."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sglang_pd_fabric.tools.demo.processes import Server, Spec, stop_all, wait_ready
from sglang_pd_fabric.tools.demo.servers import (
    ONE_RANK,
    Ports,
    Ranks,
    ServerOptions,
    free_ports,
    router_spec,
    server_spec,
)
from sglang_pd_fabric.tools.tiny.checkpoint import make_checkpoint
from sglang_pd_fabric.tools.tiny.config import Model

START_SECONDS = 480.0
Progress = Callable[[str], None]


def _silent(_line: str) -> None:
    return None


@dataclass(frozen=True)
class ClusterOptions(ServerOptions):
    """A cluster: how many servers of each role, and what only some of them get."""

    prefill: int = 1
    decode: int = 1
    # Ranks of each server of a role.
    prefill_ranks: Ranks = ONE_RANK
    decode_ranks: Ranks = ONE_RANK
    prefill_flags: tuple[str, ...] = ()
    decode_flags: tuple[str, ...] = ()
    # A role that should load another model than `model`'s tiny one (to see mismatches refused).
    checkpoints: Mapping[str, Path] = field(default_factory=dict)

    @property
    def processes(self) -> int:
        """Scheduler processes of the whole cluster: what it takes of the machine."""
        return self.prefill * self.prefill_ranks.tp + self.decode * self.decode_ranks.tp


@functools.cache
def checkpoint(model: Model, seed: int = 0) -> Path:
    """Make the tiny checkpoint once per process; it is removed when the process ends."""
    holder = tempfile.TemporaryDirectory(prefix=f"pd-fabric-tiny-{model}-")
    _holders.append(holder)
    return make_checkpoint(model, Path(holder.name), seed)


_holders: list[tempfile.TemporaryDirectory[str]] = []


class Group:
    """Servers that start and stop together."""

    # Scheduler processes, each with weights and a KV pool.
    processes = 1
    # For all of them together.
    start_seconds = START_SECONDS

    def __init__(self, logs: Path, progress: Progress) -> None:
        self.logs = logs
        self._progress = progress
        self._servers: list[Server] = []
        logs.mkdir(parents=True, exist_ok=True)

    def _start(self, specs: Sequence[Spec]) -> list[Server]:
        started = []
        try:
            for spec in specs:
                server = Server.start(spec, self.logs / f"{spec.name}.log")
                started.append(server)
                self._servers.append(server)
                self._progress(f"{server.name}: starting, process {server.pid}, log {server.log}")
            wait_ready(started, self.start_seconds, self._tell_ready)
        except BaseException:
            self.stop()
            raise
        return started

    def _tell_ready(self, server: Server) -> None:
        took = time.monotonic() - server.started
        self._progress(f"{server.name}: ready at {server.url} after {took:.0f} s")

    def restart(self, server: Server) -> Server:
        """Start a server again with the same command line, after it was killed if it still runs.

        Its log is another file beside the first. Waiting until it is ready is the caller's business.
        """
        server.kill()
        stem = server.spec.name
        starts = 1 + len([*self.logs.glob(f"{stem}.log"), *self.logs.glob(f"{stem}.*.log")])
        fresh = Server.start(server.spec, self.logs / f"{stem}.{starts}.log")
        self._servers[self._servers.index(server)] = fresh
        return fresh

    def stop(self) -> None:
        """Stop all of them; harmless if that was done already."""
        stop_all(self._servers)
        self._servers.clear()

    @property
    def servers(self) -> tuple[Server, ...]:
        """All processes that run, the router among them."""
        return tuple(self._servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()


class Ordinary(Group):
    """One server without disaggregation: the reference."""

    def __init__(self, options: ServerOptions, logs: Path, progress: Progress = _silent) -> None:
        super().__init__(logs, progress)
        (port,) = free_ports(1)
        spec = server_spec("ordinary", 0, checkpoint(options.model), options, Ports(port))
        (self.server,) = self._start([spec])
        self.url = self.server.url


class Cluster(Group):
    """Prefill and decode servers behind a router."""

    def __init__(self, options: ClusterOptions, logs: Path, progress: Progress = _silent) -> None:
        super().__init__(logs, progress)
        self.options = options
        self.processes = options.processes
        prefill_flags = (*options.prefill_ranks.flags, *options.prefill_flags)
        decode_flags = (*options.decode_ranks.flags, *options.decode_flags)
        ports = iter(free_ports(2 * options.prefill + options.decode + 1))
        prefills, decodes, bootstrap_ports = [], [], []
        for index in range(options.prefill):
            port, bootstrap_port = next(ports), next(ports)
            bootstrap_ports.append(bootstrap_port)
            model = self._checkpoint("prefill")
            prefills.append(
                server_spec("prefill", index, model, options, Ports(port, bootstrap_port), prefill_flags)
            )
        for index in range(options.decode):
            model = self._checkpoint("decode")
            decodes.append(server_spec("decode", index, model, options, Ports(next(ports)), decode_flags))
        pairs = [(spec.url, port) for spec, port in zip(prefills, bootstrap_ports, strict=True)]
        router = router_spec(pairs, [spec.url for spec in decodes], next(ports))
        self._start([*prefills, *decodes, router])
        self.bootstrap_ports = bootstrap_ports
        self.url = router.url

    @property
    def prefills(self) -> list[Server]:
        """The prefill servers, in the order of `bootstrap_ports`."""
        return self._servers[: self.options.prefill]

    @property
    def decodes(self) -> list[Server]:
        """The decode servers."""
        return self._servers[self.options.prefill : -1]

    @property
    def router(self) -> Server:
        """The load balancer in front of them."""
        return self._servers[-1]

    def _checkpoint(self, role: str) -> Path:
        return self.options.checkpoints.get(role) or checkpoint(self.options.model)
