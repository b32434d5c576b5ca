"""A prefill and a decode server whose pages go through a TCP relay: the link between them can be slow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sglang_pd_fabric.tools.demo.cluster import ClusterOptions, Group, checkpoint
from sglang_pd_fabric.tools.demo.servers import Ports, free_ports, router_spec, server_spec

from .relay import Relay

OPTIONS = ClusterOptions(model="gqa", provider="tcp")


class Linked(Group):
    """``url`` is the router's. Decode is told of a relay as prefill's bootstrap server.

    Args:
        flags: more flags of both servers.
    """

    def __init__(self, logs: Path, flags: Sequence[str] = ()) -> None:
        super().__init__(logs, lambda line: print(line, flush=True))
        prefill, bootstrap, decode, router = free_ports(4)
        model, options = checkpoint(OPTIONS.model), dataclasses.replace(OPTIONS, flags=tuple(flags))
        self._closing = ExitStack()
        self._relay = self._closing.enter_context(Relay(bootstrap, writes=True))
        first = server_spec("prefill", 0, model, options, Ports(prefill, bootstrap))
        second = server_spec("decode", 0, model, options, Ports(decode))
        pair = router_spec([(first.url, self._relay.port)], [second.url], router)
        self.prefill, self.decode, self.router = self._start([first, second, pair])
        self.url = pair.url

    @contextmanager
    def slow(self, rate: float) -> Iterator[None]:
        """No more than so many bytes a second go from prefill to decode."""
        self._relay.slow(rate)
        try:
            yield
        finally:
            self._relay.slow(math.inf)

    def stop(self) -> None:
        super().stop()
        self._closing.close()
