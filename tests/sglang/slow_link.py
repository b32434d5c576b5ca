"""A prefill and a decode server whose pages go through a TCP relay: the link between them can be slow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from relay import Relay as Link

from sglang_pd_fabric.messenger.messages import Hello
from sglang_pd_fabric.tools.demo.cluster import ClusterOptions, Group, checkpoint
from sglang_pd_fabric.tools.demo.servers import Ports, free_ports, router_spec, server_spec

from .relay import Relay

OPTIONS = ClusterOptions(model="gqa", provider="tcp")


class Linked(Group):
    """``url`` is the router's. Decode is told of a relay as prefill's bootstrap server, and prefill of relays
    as decode's NICs.

    Args:
        flags: more flags of both servers.
    """

    def __init__(self, logs: Path, flags: Sequence[str] = ()) -> None:
        super().__init__(logs, lambda line: print(line, flush=True))
        prefill, bootstrap, decode, router = free_ports(4)
        model, options = checkpoint(OPTIONS.model), dataclasses.replace(OPTIONS, flags=tuple(flags))
        self._closing = ExitStack()
        control = self._closing.enter_context(Relay(bootstrap))
        control.alter_hello = self._through_links
        self._links: dict[bytes, Link] = {}
        first = server_spec("prefill", 0, model, options, Ports(prefill, bootstrap))
        second = server_spec("decode", 0, model, options, Ports(decode))
        pair = router_spec([(first.url, control.port)], [second.url], router)
        self.prefill, self.decode, self.router = self._start([first, second, pair])
        self.url = pair.url

    @contextmanager
    def slow(self, rate: float) -> Iterator[None]:
        """No more than so many bytes a second go to each of decode's NICs."""
        assert self._links, "prefill has sent nothing yet"
        for link in self._links.values():
            link.rate = rate
        try:
            yield
        finally:
            for link in self._links.values():
                link.rate = None

    def stop(self) -> None:
        super().stop()
        self._closing.close()

    def _through_links(self, hello: Hello) -> Hello:
        for address in hello.addresses:
            if address not in self._links:
                self._links[address] = self._closing.enter_context(Link(address))
        addresses = tuple(self._links[address].address for address in hello.addresses)
        return msgspec.structs.replace(hello, addresses=addresses)
