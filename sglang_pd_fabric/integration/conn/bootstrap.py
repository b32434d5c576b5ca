"""The bootstrap server of a prefill server: SGLang's, which also passes on that a request was refused."""

import logging
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from aiohttp import web
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer
from sglang.srt.utils.network import NetworkAddress

from sglang_pd_fabric.integration.http.refusals import PATH
from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.messages import Refused

logger = logging.getLogger(__name__)


class FabricBootstrapServer(CommonKVBootstrapServer):  # type: ignore[misc]
    """Runs in the prefill's HTTP process, on a thread of its own."""

    def _setup_routes(self) -> None:
        super()._setup_routes()
        self._context = zmq.Context()
        self._ranks: dict[str, zmq.Socket[bytes]] = {}
        self.app.router.add_post(PATH, self._handle_refused)

    async def _handle_refused(self, request: web.Request) -> web.Response:
        """Tells all ranks of this prefill server that a room is over."""
        try:
            refused = msgspec.json.decode(await request.read(), type=Refused)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            return web.Response(text=str(error), status=400)
        for address in self._addresses():
            try:
                self._rank(address).send_multipart(messages.encode(refused), zmq.NOBLOCK)
            except zmq.ZMQError as error:
                logger.warning("Could not tell %s that room %d was refused: %s", address, refused.room, error)
        return web.Response(text="OK")

    def _addresses(self) -> list[str]:
        ranks: list[Any] = [self.prefill_port_table]
        for _level in ("dp", "cp", "tp", "pp"):
            ranks = [below for table in ranks for below in table.values()]
        return [NetworkAddress(rank.rank_ip, rank.rank_port).to_tcp() for rank in ranks]

    def _rank(self, address: str) -> "zmq.Socket[bytes]":
        found = self._ranks.get(address)
        if found is None:
            found = self._ranks[address] = self._context.socket(zmq.PUSH)
            found.setsockopt(zmq.LINGER, 0)
            found.setsockopt(zmq.IPV6, int("[" in address))
            found.connect(address)
        return found
