"""The command lines: which flags and variables make a prefill, decode, ordinary or router process here."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from sglang_pd_fabric.integration.cpu import PLATFORM_NAME
from sglang_pd_fabric.tools.demo.processes import Spec
from sglang_pd_fabric.tools.tiny.config import Model

Role = Literal["ordinary", "prefill", "decode"]
Order = Literal["nhd", "hnd"]
ORDERS: tuple[Order, ...] = ("nhd", "hnd")
HOST = "127.0.0.1"
PORT_RANGE = range(10000, 20000)  # SGLang picks some of its own from 22000 on, and binds them later


@dataclass(frozen=True)
class ServerOptions:
    """What all servers of a cluster have in common."""

    model: Model = "gqa"
    backend: str = "fabric"
    provider: str = "tcp"
    page_size: int = 16
    # Of a page: [token, head, dim] or [head, token, dim]. MLA has one latent a token, so no choice.
    order: Order = "nhd"
    chunked_prefill_size: int = 256
    dtype: str = "float32"
    overlap: bool = True
    radix_cache: bool = True
    max_total_tokens: int = 16384
    threads: int = 1
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


class Ranks(NamedTuple):
    """How a server spreads over ranks: `tp` of them, in `dp` groups that attend to different requests."""

    tp: int = 1
    dp: int = 1

    @property
    def flags(self) -> tuple[str, ...]:
        """The command line that asks for it."""
        flags = ("--tp-size", str(self.tp)) if self.tp > 1 else ()
        return (*flags, "--dp-size", str(self.dp), "--enable-dp-attention") if self.dp > 1 else flags


ONE_RANK = Ranks()


class Ports(NamedTuple):
    """Where a server listens; only prefill has a bootstrap port."""

    http: int
    bootstrap: int | None = None


def free_ports(count: int) -> list[int]:
    """Find ports that nobody uses, each different from the others.

    They lie below the range from which the kernel serves connections: a port of that range that is free now
    may be the near end of some connection by the time when the server wants to listen on it.
    """
    with ExitStack() as stack:
        found: list[int] = []
        candidates = iter(random.SystemRandom().sample(PORT_RANGE, len(PORT_RANGE)))
        while len(found) < count:
            candidate = next(candidates)
            with contextlib.suppress(OSError):
                # Kept until all are found.
                stack.enter_context(socket.socket()).bind((HOST, candidate))
                found.append(candidate)
        return found


def server_spec(
    role: Role,
    index: int,
    checkpoint: Path,
    options: ServerOptions,
    ports: Ports,
    flags: Sequence[str] = (),
) -> Spec:
    """Build the command of one SGLang server."""
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(checkpoint)]
    command += ["--host", HOST, "--port", str(ports.http), "--device", "cpu", "--dtype", options.dtype]
    command += ["--page-size", str(options.page_size), "--max-total-tokens", str(options.max_total_tokens)]
    command += ["--chunked-prefill-size", str(options.chunked_prefill_size)]
    command += ["--enable-metrics"]
    if not options.overlap:
        command.append("--disable-overlap-schedule")
    if not options.radix_cache:
        command.append("--disable-radix-cache")
    if role != "ordinary":
        command += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", options.backend]
    if ports.bootstrap is not None:
        command += ["--disaggregation-bootstrap-port", str(ports.bootstrap)]
    env = {
        "SGLANG_PLATFORM": PLATFORM_NAME,
        # "mapped" is no provider: the pages do not leave the host's memory, whatever the provider.
        "SGLANG_PD_FABRIC_PROVIDER": "tcp" if options.provider == "mapped" else options.provider,
        "SGLANG_PD_FABRIC_SAME_HOST": "map" if options.provider == "mapped" else "provider",
        # Everything of the demo stays on the loopback interface: control messages and pages.
        "SGLANG_HOST_IP": HOST,
        # One thread each: the servers share a few cores, and more threads only wait for one another.
        "OMP_NUM_THREADS": str(options.threads),
        "SGLANG_USE_HND_KVCACHE": str(int(options.order == "hnd")),
        **options.env,
    }
    name = role if role == "ordinary" else f"{role}-{index}"
    return Spec(name, (*command, *options.flags, *flags), env, f"http://{HOST}:{ports.http}")


def router_spec(prefills: Sequence[tuple[str, int]], decodes: Sequence[str], port: int) -> Spec:
    """Build the command of SGLang's small load balancer for (URL, bootstrap port) pairs and decode URLs."""
    command = [sys.executable, "-m", "sglang_router.launch_router", "--mini-lb", "--pd-disaggregation"]
    command += ["--host", HOST, "--port", str(port)]
    for url, bootstrap_port in prefills:
        command += ["--prefill", url, str(bootstrap_port)]
    for url in decodes:
        command += ["--decode", url]
    return Spec("router", tuple(command), {}, f"http://{HOST}:{port}")
