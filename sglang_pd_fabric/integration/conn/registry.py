"""The bootstrap server of a prefill server, where its ranks register and decode ranks look them up.

It is SGLang's, with what that leaves out: a port that is taken ends the start, bodies have a size and types,
a rank that registers again takes its own place, and not everybody may register.
"""

import asyncio
import ipaddress
import logging
import math
import socket
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from aiohttp import web
from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer

from sglang_pd_fabric.integration.conn.credentials import (
    HEADER,
    UnsignedError,
    check,
    is_neighbour,
    signed_at,
)
from sglang_pd_fabric.integration.http.refusals import PATH as REFUSED_ROOMS
from sglang_pd_fabric.messenger.complaints import Complaints
from sglang_pd_fabric.messenger.messages import U64, Port
from sglang_pd_fabric.settings import load_settings, read_secret, variable

logger = logging.getLogger(__name__)

MAX_BODY = 1 << 20
MAX_RANKS = 1 << 16
MAX_ROOMS = 1 << 20  # whose DP rank is remembered, each for SGLang's clean-up interval
SECRET_FILE = variable("secret_file")

Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]
Name = Annotated[str, msgspec.Meta(max_length=256)]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PortTakenError(OSError):
    """The bootstrap server cannot listen where it was told to."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """What a prefill rank says of itself; SGLang's names. What else is in the body is left out."""

    attn_tp_size: Size
    attn_tp_rank: Number
    attn_cp_size: Size
    attn_cp_rank: Number
    attn_dp_size: Size
    attn_dp_rank: Number
    pp_size: Size
    pp_rank: Number
    system_dp_size: Size
    system_dp_rank: Number
    rank_ip: Name
    rank_port: Port
    page_size: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    kv_cache_dtype: Name | None = None
    kv_layout: Name | None = None
    dsv41_spec_layout: dict[str, Any] | None = None
    load_balance_method: Name = "follow_bootstrap_room"
    enable_dsa_cache_layer_split: bool = False
    enable_kv_cache_sharding: bool = False
    prefill_http_port: Port | None = None
    decode_allocation_policy: Name = "early"

    @property
    def dp(self) -> tuple[int, int]:
        """Size and rank, as SGLang's table counts them."""
        if self.system_dp_size == 1:
            return self.attn_dp_size, self.attn_dp_rank
        return self.system_dp_size, self.system_dp_rank

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return self.dp[0], self.attn_cp_size, self.attn_tp_size, self.pp_size

    @property
    def place(self) -> tuple[int, int, int, int]:
        return self.dp[1], self.attn_cp_rank, self.attn_tp_rank, self.pp_rank

    def problem(self) -> str:
        """What cannot be right about it; empty if nothing."""
        if any(rank >= size for rank, size in zip(self.place, self.sizes, strict=True)):
            return f"rank {self.place} is none of {self.sizes}"
        if math.prod(self.sizes) > MAX_RANKS:
            return f"{math.prod(self.sizes)} ranks; at most {MAX_RANKS} are taken"
        try:
            address = ipaddress.ip_address(self.rank_ip)
        except ValueError:
            return f"rank_ip {self.rank_ip!r} is no IP address"
        return f"nobody can connect to {address}" if address.is_unspecified or address.is_multicast else ""


class _Room(msgspec.Struct, frozen=True):
    bootstrap_room: U64
    dp_rank: Number


class _Rooms(msgspec.Struct, frozen=True):
    bootstrap_rooms: list[U64]


class RegistryServer(CommonKVBootstrapServer):  # type: ignore[misc]
    """Runs in the prefill's HTTP process, on a thread of its own.

    Raises:
        PortTakenError: it cannot listen there.
        SettingError: a setting is wrong.
    """

    def __init__(self, host: str, port: int) -> None:
        self._secret = read_secret(load_settings())
        self._complaints = Complaints(logger)
        self._registered: dict[tuple[int, int, int, int], int] = {}  # when its registration was signed
        self._sizes: tuple[int, int, int, int] | None = None
        self._listeners = _listen(host, port)
        super().__init__(host, port)

    # -- SGLang's methods ----------------------------------------------------------------------------

    def _setup_routes(self) -> None:
        self.app = web.Application(client_max_size=MAX_BODY, middlewares=[self._guard])
        super()._setup_routes()

    async def _handle_route_put(self, request: web.Request) -> web.Response:
        rank = msgspec.json.decode(await request.read(), type=Registration)
        problem = rank.problem()
        if not problem and self._sizes not in (None, rank.sizes):
            problem = f"it speaks of {rank.sizes} DP, CP, TP and PP ranks, others of {self._sizes}"
        if problem:
            return self._refused(request, 400, problem)
        signed = signed_at(request.headers.get(HEADER, ""))  # not altered: that was checked
        if self._secret is not None and signed <= self._registered.get(rank.place, 0):
            return self._refused(request, 409, "it was sent before")
        answer: web.Response = await super()._handle_route_put(request)
        if answer.status == 200:
            self._sizes = rank.sizes
            self._registered[rank.place] = signed
            self._registered_count = len(self._registered)
        return answer

    async def _handle_register_dp_rank(self, request: web.Request) -> web.Response:
        msgspec.json.decode(await request.read(), type=_Room)
        if len(self.room_to_dp_rank) >= MAX_ROOMS:
            return self._refused(request, 503, f"{MAX_ROOMS} rooms are remembered already")
        answer: web.Response = await super()._handle_register_dp_rank(request)
        return answer

    async def _handle_query_dp_ranks(self, request: web.Request) -> web.Response:
        msgspec.json.decode(await request.read(), type=_Rooms)
        answer: web.Response = await super()._handle_query_dp_ranks(request)
        return answer

    def _run_server(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._runner = web.AppRunner(self.app, access_log=None)
        try:
            self._loop.run_until_complete(self._begin())
            self._loop.run_forever()
        except Exception:
            logger.exception("The bootstrap server has ended")
        finally:
            self._loop.run_until_complete(self._runner.cleanup())
            self._loop.close()

    async def _begin(self) -> None:
        cleanup = asyncio.create_task(self._cleanup_expired_entries())
        self._background_tasks.add(cleanup)
        await self._runner.setup()
        for listener in self._listeners:
            await web.SockSite(self._runner, listener).start()
        logger.info("Bootstrap server at %s:%d", self.host, self.port)

    # -- inside --------------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets a request through to its handler, or says why not."""
        try:
            if request.path != "/health":
                await self._admit(request)
            return await handler(request)
        except UnsignedError as error:
            return self._refused(request, 401, f"{error} ({SECRET_FILE})")
        except PermissionError as error:
            return self._refused(request, 403, str(error))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            return self._refused(request, 400, str(error))

    async def _admit(self, request: web.Request) -> None:
        signature = request.headers.get(HEADER, "")
        if self._secret is not None:
            check(self._secret, signature, request.method, request.raw_path, await request.read())
        elif signature:
            raise PermissionError(f"you have a secret, and this prefill server has none ({SECRET_FILE})")
        elif _changes(request) and not is_neighbour(request.remote or ""):
            raise PermissionError(
                f"{request.remote} is in no network of this machine; to register from there, give all "
                f"servers the same secret ({SECRET_FILE})"
            )

    def _refused(self, request: web.Request, status: int, why: str) -> web.Response:
        self._complaints.warn(
            f"{request.method} {status}",
            "Refused %s %s of %s: %s",
            request.method,
            request.path[:64],
            request.remote,
            why[:512],
        )
        return web.Response(text=why[:512], status=status)


def _changes(request: web.Request) -> bool:
    """Who knows a room, a number of 63 bits, may end it: decode is not always a neighbour."""
    return request.method not in ("GET", "HEAD") and request.path not in ("/query_dp_ranks", REFUSED_ROOMS)


def _listen(host: str, port: int) -> list[socket.socket]:
    """A socket for each address that the host name stands for.

    Raises:
        PortTakenError: one of them cannot be bound to.
    """
    listeners: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            listeners.append(socket.create_server(address[:2], family=family, backlog=128))
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise PortTakenError(
            error.errno,
            f"the bootstrap server cannot listen at {host}:{port} ({error.strerror}). Is another prefill "
            "server there? Give each its own --disaggregation-bootstrap-port, and that one to the router",
        ) from error
    return listeners
