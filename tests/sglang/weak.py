"""A prefill and a decode server beside the shared cluster, to be frozen, killed and started again."""

from __future__ import annotations

import dataclasses
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang_pd_fabric.tools.demo.cluster import START_SECONDS, Cluster, ClusterOptions, Group, checkpoint
from sglang_pd_fabric.tools.demo.processes import Server, Spec, wait_ready
from sglang_pd_fabric.tools.demo.servers import Ports, free_ports, router_spec, server_spec

from .asking import Body, Outcome, bootstrap, post_all

OPTIONS = ClusterOptions(model="gqa", provider="tcp", page_size=64)

GENERATE = "/generate"
PREFILL_CONTEXT, DECODE_CONTEXT = 2000, 1700
# Holds one long prompt with its answer and little more, and answers two requests at a time.
DECODE_POOL, DECODE_SEATS = 2304, 2
BOOTSTRAP_SECONDS, PAGES_SECONDS = 6, 60


class Weak(Group):
    """``prefill`` and ``decode`` are weak; ``strong`` is the shared cluster, which nobody kills.

    The weak prefill takes shorter prompts than the strong one and waits less for decode; the weak decode has
    a small pool, takes two requests at a time, and still shorter prompts, and waits less for pages.
    """

    def __init__(self, strong: Cluster, logs: Path) -> None:
        super().__init__(logs, lambda line: print(line, flush=True))
        self.strong = strong
        prefill, self.port, decode, router = free_ports(4)
        options = dataclasses.replace(
            OPTIONS, env={"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": str(BOOTSTRAP_SECONDS)}
        )
        patience = dataclasses.replace(
            OPTIONS, env={"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": str(PAGES_SECONDS)}
        )
        model = checkpoint("gqa")
        self.specs: Mapping[str, Spec] = {
            "prefill": server_spec(
                "prefill",
                1,
                model,
                options,
                Ports(prefill, self.port),
                ("--context-length", str(PREFILL_CONTEXT)),
            ),
            "decode": server_spec(
                "decode",
                1,
                model,
                patience,
                Ports(decode),
                (
                    *("--context-length", str(DECODE_CONTEXT)),
                    *("--max-total-tokens", str(DECODE_POOL)),
                    *("--max-running-requests", str(DECODE_SEATS)),
                ),
            ),
        }
        pair = (self.specs["prefill"].url, self.port)
        router_of_both = router_spec([pair], [self.specs["decode"].url], router)
        self.prefill, self.decode, self.router = self._start([*self.specs.values(), router_of_both])
        self._starts = 0

    def kill(self, *servers: Server) -> None:
        """Ends them as the kernel does, with all their processes."""
        for server in servers:
            server.signal(signal.SIGKILL)
            server.process.wait()

    def revive(self, flags: Mapping[str, Sequence[str]] | None = None) -> None:
        """Starts those that are dead again, on their ports, with ``flags`` after their own."""
        self._starts += 1
        fresh = []
        for name, spec in self.specs.items():
            server: Server = getattr(self, name)
            if server.alive():
                continue
            more = tuple((flags or {}).get(name, ()))
            command = dataclasses.replace(spec, command=(*spec.command, *more))
            server = Server.start(command, self.logs / f"{spec.name}-{self._starts}.log")
            setattr(self, name, server)
            self._servers.append(server)
            fresh.append(server)
        wait_ready(fresh, START_SECONDS, self._tell_ready)

    def through(
        self, body: Body, *, prefill: str, decode: str, port: int | None = None
    ) -> list[tuple[str, Body]]:
        """The two requests that a router would make of one, for a prefill and a decode: weak or strong.

        Args:
            port: of a relay in place of prefill's bootstrap port.
        """
        first = self.prefill if prefill == "weak" else self.strong.prefills[0]
        second = self.decode if decode == "weak" else self.strong.decodes[0]
        port = port or (self.port if prefill == "weak" else self.strong.bootstrap_ports[0])
        body = body | bootstrap(port, random.randrange(1, 1 << 63))
        return [(first.url + GENERATE, body), (second.url + GENERATE, body)]

    def ask(
        self, body: Body, *, prefill: str, decode: str, port: int | None = None
    ) -> tuple[Outcome, Outcome]:
        """Prefill's and decode's answer."""
        one, two = post_all(self.through(body, prefill=prefill, decode=decode, port=port))
        return one, two


@contextmanager
def frozen(server: Server) -> Iterator[None]:
    """All processes of the server stand still; its sockets stay open."""
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


def wait_for(what: Callable[[], Any], seconds: float = 60) -> Any:
    """Asks until it is true."""
    import time

    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)
    return found
