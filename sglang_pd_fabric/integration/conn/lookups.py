"""What bootstrap servers say, fetched on a thread of our own, so that the scheduler waits for none of them.

SGLang asks them on decode's scheduler thread, one request at a time and up to five seconds each. There one
frozen prefill stops everybody's answers. Here the scheduler asks for what is known and goes on; one thread
with an event loop asks the servers, all at once, and again until nobody waits for an answer any more.
"""

import asyncio
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aiohttp
from cachetools import TTLCache
from yarl import URL

from sglang_pd_fabric.integration.conn.credentials import sign
from sglang_pd_fabric.integration.conn.endpoints import endpoint_of
from sglang_pd_fabric.messenger.messages import Endpoint

logger = logging.getLogger(__name__)

REQUEST_S = 5.0  # one answer; a server that has none is asked again
RETRY_S = 0.25
DP_RETRY_S = 0.02  # how long a rank takes to announce the room that it got
INTEREST_S = 3.0  # an address that nobody has asked for in this time is not asked for
MAX_BODY = 1 << 16
MAX_RANKS = 4096
AT_ONCE = 16
# For how long a request looks for its prefill.
PATIENCE_S = 15.0  # SGLang's own: fifteen attempts, one a second
SILENT_S = 8.0  # one that was known and was lost, and does not answer
REFUSED_S = 2.0  # one that was known and was lost, and nobody listens at its address
REMEMBERED, REMEMBERED_S = 4096, 600.0  # servers that were lost, and for how long


class RankKey(NamedTuple):
    """A prefill rank, as its bootstrap server numbers it."""

    dp: int
    cp: int
    tp: int
    pp: int


EVERYBODY = RankKey(-1, -1, -1, -1)  # asks for what all ranks have in common


class NotABootstrapServerError(RuntimeError):
    """What answers at the address does not answer as a bootstrap server that is ready."""


class ForbiddenError(RuntimeError):
    """The bootstrap server will not talk to us, however often we ask."""


@dataclass
class _Server:
    """One bootstrap server: what it said, or why that is not known."""

    asked: float
    info: Any = None
    ranks: dict[RankKey, dict[str, Any]] = field(default_factory=dict)
    reason: str = "it has not answered yet"
    forbids: bool = False
    refuses: bool = False
    wanted: dict[int, float] = field(default_factory=dict)  # rooms without a DP rank, when last asked for
    dp_ranks: dict[int, int] = field(default_factory=dict)
    querying: bool = False


class Lookups:
    """Answers of bootstrap servers, by address (``host:port``). No method waits.

    Args:
        secret: what all servers share, if they do.
        pair: makes of a server's answer (JSON) what the manager keeps of it, and says which of its ranks this
            rank will need. May raise: then the server is one that we cannot work with.
        publish: told of an address and its info when all of it is there, before ``ask`` returns it.
    """

    def __init__(
        self,
        secret: bytes | None,
        pair: Callable[[dict[str, Any]], tuple[Any, Iterable[RankKey]]],
        publish: Callable[[str, Any], None],
    ) -> None:
        self._secret = secret
        self._pair = pair
        self._publish = publish
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}
        self._gone: TTLCache[str, bool] = TTLCache(REMEMBERED, REMEMBERED_S)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pd_fabric_lookups", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""

        async def cancel() -> None:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- any thread ----------------------------------------------------------------------------------

    def ask(self, address: str) -> Any | None:
        """What ``pair`` made of the server's answer; None: not known yet, but being asked for."""
        with self._lock:
            server = self._servers.get(address)
            if server is None:
                server = self._servers[address] = _Server(time.monotonic())
                self._start(self._search(address, server))
            server.asked = time.monotonic()
            return server.info

    def rank(self, address: str, key: RankKey) -> dict[str, Any] | None:
        """A rank's entry of a server that is known, as a copy."""
        with self._lock:
            server = self._servers.get(address)
            found = server.ranks.get(key) if server is not None else None
            return dict(found) if found is not None else None

    def dp_rank(self, address: str, room: int) -> int | None:
        """Which DP rank of a known server has the room; None: it has not said so yet."""
        with self._lock:
            server = self._servers.get(address)
            if server is None or server.info is None:
                return None
            known = server.dp_ranks.pop(room, None)
            if known is not None:
                server.wanted.pop(room, None)
                return known
            server.wanted[room] = time.monotonic()
            if not server.querying:
                server.querying = True
                self._start(self._query(address, server))
            return None

    def reason(self, address: str) -> str:
        """Why the server is not known, or does not know a room."""
        with self._lock:
            server = self._servers.get(address)
            if server is None:
                return "it was not asked"
            return (
                server.reason if server.info is None else "it does not know which of its ranks has the room"
            )

    def forbids(self, address: str) -> bool:
        """Whether the server has refused to talk to us: waiting is of no use."""
        with self._lock:
            server = self._servers.get(address)
            return server is not None and server.forbids

    def patience(self, address: str) -> float:
        """Seconds for which it is worth looking for the server.

        One that has yet to start may come. One that was here and was killed has to start again first, and
        prefill's half of the request died with it.
        """
        with self._lock:
            if address not in self._gone:
                return PATIENCE_S
            server = self._servers.get(address)
            return REFUSED_S if server is not None and server.refuses else SILENT_S

    def drop(self, address: str) -> None:
        """Forgets a server: it is gone, or another process has taken its place."""
        with self._lock:
            server = self._servers.pop(address, None)
            if server is not None and server.info is not None:
                self._gone[address] = True

    def ranks(self, address: str) -> list[Endpoint]:
        """The ranks of a server that this rank would pull from; none while it is not known."""
        with self._lock:
            server = self._servers.get(address)
            return [endpoint_of(entry) for entry in server.ranks.values()] if server is not None else []

    def servers_of(self, rank: Endpoint) -> list[str]:
        """Addresses of the servers that announced this rank."""
        with self._lock:
            return [
                address
                for address, server in self._servers.items()
                if any(endpoint_of(entry) == rank for entry in server.ranks.values())
            ]

    # -- the thread ----------------------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        def begin() -> None:
            task = self._loop.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._loop.call_soon_threadsafe(begin)

    def _current(self, address: str, server: _Server) -> bool:
        return self._servers.get(address) is server

    async def _search(self, address: str, server: _Server) -> None:
        async with _session() as session:
            while self._still_wanted(address, server):
                try:
                    info, ranks = await self._fetch(session, address)
                except Exception as error:
                    reason = "it does not answer" if isinstance(error, TimeoutError) else str(error)
                    if reason != server.reason:
                        logger.warning("Bootstrap server %s: %s", address, reason)
                    server.reason, server.forbids = reason, isinstance(error, ForbiddenError)
                    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
                    server.refuses = isinstance(cause, ConnectionRefusedError)
                    await asyncio.sleep(RETRY_S)
                    continue
                with self._lock:
                    if self._current(address, server):
                        server.ranks = ranks
                        self._publish(address, info)
                        server.info = info
                        self._gone.pop(address, None)
                return

    def _still_wanted(self, address: str, server: _Server) -> bool:
        """Whether anybody waits for the server; without that it is forgotten."""
        with self._lock:
            if not self._current(address, server):
                return False
            if time.monotonic() - server.asked < INTEREST_S + REQUEST_S:
                return True
            del self._servers[address]
            return False

    async def _fetch(
        self, session: aiohttp.ClientSession, address: str
    ) -> tuple[Any, dict[RankKey, dict[str, Any]]]:
        info, keys = self._pair(await self._get(session, address, EVERYBODY))
        wanted = list(itertools.islice(keys, MAX_RANKS + 1))
        if len(wanted) > MAX_RANKS:
            raise NotABootstrapServerError(f"it speaks of more than {MAX_RANKS} ranks")
        entries = await asyncio.gather(*(self._get(session, address, key) for key in wanted))
        for entry in entries:
            endpoint_of(entry)
        return info, dict(zip(wanted, entries, strict=True))

    async def _get(self, session: aiohttp.ClientSession, address: str, key: RankKey) -> dict[str, Any]:
        path = (
            f"/route?prefill_dp_rank={key.dp}&prefill_cp_rank={key.cp}"
            f"&target_tp_rank={key.tp}&target_pp_rank={key.pp}"
        )
        # Anything may answer there: a client names the address.
        url, headers = URL(f"http://{address}{path}", encoded=True), sign(self._secret, "GET", path)
        async with session.get(url, headers=headers, allow_redirects=False) as response:
            return await _read(response)

    async def _ask_for_rooms(
        self, session: aiohttp.ClientSession, address: str, rooms: list[int]
    ) -> dict[str, Any]:
        path, body = "/query_dp_ranks", json.dumps({"bootstrap_rooms": rooms}).encode()
        headers = {"Content-Type": "application/json", **sign(self._secret, "POST", path, body)}
        url = f"http://{address}{path}"
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            return await _read(response)

    async def _query(self, address: str, server: _Server) -> None:
        async with _session() as session:
            while rooms := self._wanted(address, server):
                try:
                    answer = await self._ask_for_rooms(session, address, rooms)
                    with self._lock:
                        for room in rooms:
                            if str(room) in answer:
                                server.dp_ranks[room] = int(answer[str(room)])
                except Exception as error:
                    logger.warning("Bootstrap server %s does not tell ranks of rooms: %s", address, error)
                    await asyncio.sleep(RETRY_S)
                await asyncio.sleep(DP_RETRY_S)

    def _wanted(self, address: str, server: _Server) -> list[int]:
        """Rooms that still wait for their DP rank; with none left the query is over."""
        with self._lock:
            recent = time.monotonic() - INTEREST_S
            server.wanted = {room: asked for room, asked in server.wanted.items() if asked > recent}
            server.dp_ranks = {room: rank for room, rank in server.dp_ranks.items() if room in server.wanted}
            rooms = [room for room in server.wanted if room not in server.dp_ranks]
            server.querying = bool(rooms) and self._current(address, server)
            return rooms if server.querying else []


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=REQUEST_S), connector=aiohttp.TCPConnector(limit=AT_ONCE)
    )


async def _read(response: aiohttp.ClientResponse) -> dict[str, Any]:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_BODY:
            raise NotABootstrapServerError(f"it answers with more than {MAX_BODY} bytes")
    if response.status != 200:
        text = body.decode(errors="replace").strip()[:400]
        if response.status in (401, 403):
            raise ForbiddenError(f"it refuses us: {text}")
        raise NotABootstrapServerError(f"it answers HTTP {response.status}: {text}")
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise NotABootstrapServerError("it does not answer as a bootstrap server")
    return answer
