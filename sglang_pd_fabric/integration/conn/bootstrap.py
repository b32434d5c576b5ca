"""The bootstrap server of a prefill server, which also passes on that a request was refused."""

from typing import Any

import msgspec
from aiohttp import web
from sglang.srt.utils.network import get_local_ip_auto

from sglang_pd_fabric.integration.conn.endpoints import open_links
from sglang_pd_fabric.integration.conn.registry import RegistryServer
from sglang_pd_fabric.integration.http.refusals import PATH
from sglang_pd_fabric.messenger.links import Links
from sglang_pd_fabric.messenger.messages import Endpoint, Refused
from sglang_pd_fabric.settings import load_settings


class FabricBootstrapServer(RegistryServer):
    """Runs in the prefill's HTTP process, on a thread of its own."""

    _links: Links | None = None  # to our ranks, from the first refusal on

    def _setup_routes(self) -> None:
        super()._setup_routes()
        self.app.router.add_post(PATH, self._handle_refused)

    async def _handle_refused(self, request: web.Request) -> web.Response:
        """Tells all ranks of this prefill server that a room is over."""
        refused = msgspec.json.decode(await request.read(), type=Refused)
        if self._links is None:
            self._links = open_links(load_settings(), get_local_ip_auto(), self._secret)
            self._links.start(lambda _message: None, lambda _peer, _loss: None, lambda: None)
        for rank in self._ranks():
            self._links.send(rank, refused)
        return web.Response(text="OK")

    def _ranks(self) -> list[Endpoint]:
        ranks: list[Any] = [self.prefill_port_table]
        for _level in ("dp", "cp", "tp", "pp"):
            ranks = [below for table in ranks for below in table.values()]
        return [Endpoint(rank.rank_ip, rank.rank_port) for rank in ranks]
