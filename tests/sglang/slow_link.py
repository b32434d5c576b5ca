"""A prefill and a decode server behind two routers: for one of them the link between the servers is slow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sglang_pd_fabric.tools.demo.cluster import ClusterOptions, Group, checkpoint
from sglang_pd_fabric.tools.demo.servers import Ports, free_ports, router_spec, server_spec

from .relay import Relay

OPTIONS = ClusterOptions(model="gqa", provider="tcp")
# A prompt of 200 tokens has 0.8 MB of pages, which take 0.8 s then.
SLOW = 1e6  # bytes a second


class Linked(Group):
    """``url`` is the first router's, ``slow_url`` the other's. Decode is told there of a relay as prefill's
    bootstrap server, and meets prefill a second time, by way of it.

    Args:
        flags: more flags of both servers.
    """

    def __init__(self, logs: Path, flags: Sequence[str] = ()) -> None:
        super().__init__(logs, lambda line: print(line, flush=True))
        prefill, bootstrap, decode, direct, slow = free_ports(5)
        model, options = checkpoint(OPTIONS.model), dataclasses.replace(OPTIONS, flags=tuple(flags))
        self._closing = ExitStack()
        relay = self._closing.enter_context(Relay(bootstrap, writes=True, rate=SLOW))
        first = server_spec("prefill", 0, model, options, Ports(prefill, bootstrap))
        second = server_spec("decode", 0, model, options, Ports(decode))
        routers = [
            router_spec([(first.url, port)], [second.url], own)
            for port, own in ((bootstrap, direct), (relay.port, slow))
        ]
        routers[1] = dataclasses.replace(routers[1], name="router-slow")
        self.prefill, self.decode, *self.routers = self._start([first, second, *routers])
        self.url, self.slow_url = (router.url for router in routers)

    def stop(self) -> None:
        super().stop()
        self._closing.close()
