"""Decode learns of prefill servers and waits for none: real bootstrap servers, frozen, late and foreign ones.

No SGLang server runs here; importing SGLang costs about 10 seconds, the rest 15.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from sglang_pd_fabric.integration.conn import registering
from sglang_pd_fabric.integration.conn.lookups import PATIENCE_S, REFUSED_S, SILENT_S, Lookups, RankKey
from sglang_pd_fabric.integration.conn.renounced import RenouncedRooms
from sglang_pd_fabric.integration.failures import kind_of
from sglang_pd_fabric.integration.http import refusals
from sglang_pd_fabric.messenger.links import Links
from sglang_pd_fabric.messenger.messages import Endpoint, Message, Refused, Renounced
from sglang_pd_fabric.tools.demo.servers import HOST, free_ports

pytest.importorskip("sglang")
pytestmark = pytest.mark.sglang

LIMIT_S = 60


class World:
    """A ``Lookups`` and what it has published."""

    def __init__(self, secret: bytes | None = None) -> None:
        self.published: dict[str, Any] = {}
        self.lookups = Lookups(secret, self.pair, self.published.__setitem__)

    @staticmethod
    def pair(answer: dict[str, Any]) -> tuple[Any, list[RankKey]]:
        return answer, [RankKey(0, 0, tp, 0) for tp in range(int(answer["attn_tp_size"]))]

    def wait(self, what: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + LIMIT_S
        while not (found := what()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return found


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.lookups.close()


@contextmanager
def bootstrap_server(port: int | None = None) -> Iterator[str]:
    from sglang_pd_fabric.integration.conn.bootstrap import FabricBootstrapServer

    port = port or free_ports(1)[0]
    server = FabricBootstrapServer(HOST, port)
    try:
        yield f"{HOST}:{port}"
    finally:
        server.close()


def register(address: str, rank: int, port: int, size: int = 2, secret: bytes | None = None) -> None:
    body = {
        **{f"attn_{name}_size": 1 for name in ("cp", "dp")},
        **{f"attn_{name}_rank": 0 for name in ("cp", "dp")},
        "attn_tp_size": size,
        "attn_tp_rank": rank,
        "pp_size": 1,
        "pp_rank": 0,
        "system_dp_size": 1,
        "system_dp_rank": 0,
        "rank_ip": HOST,
        "rank_port": port,
        "page_size": 16,
        "kv_cache_dtype": "auto",
    }
    registering.register(secret, f"http://{address}", "/route", body)


def test_a_server_is_known_with_all_its_ranks_when_the_last_has_registered(world: World) -> None:
    with bootstrap_server() as address:
        register(address, 0, 7001)
        assert world.lookups.ask(address) is None
        world.wait(lambda: "not fully registered" in world.lookups.reason(address))
        assert not world.published
        register(address, 1, 7002)
        info = world.wait(lambda: world.lookups.ask(address))
        assert world.published == {address: info}
        for tp, port in enumerate((7001, 7002)):
            assert world.lookups.rank(address, RankKey(0, 0, tp, 0)) == {"rank_ip": HOST, "rank_port": port}
            assert world.lookups.servers_of(Endpoint(HOST, port)) == [address]
        assert world.lookups.rank(address, RankKey(1, 0, 0, 0)) is None


def test_a_server_that_starts_late_is_found(world: World) -> None:
    (port,) = free_ports(1)
    address = f"{HOST}:{port}"
    world.lookups.ask(address)
    world.wait(lambda: "Cannot connect" in world.lookups.reason(address))
    with bootstrap_server(port):
        register(address, 0, 7001, size=1)
        assert world.wait(lambda: world.lookups.ask(address))["attn_tp_size"] == 1


def test_a_server_that_was_killed_is_not_waited_for_as_one_that_has_yet_to_start(world: World) -> None:
    lookups = world.lookups
    with bootstrap_server() as address:
        register(address, 0, 7001, size=1)
        world.wait(lambda: lookups.ask(address))
        lookups.drop(address)  # its rank was lost
        assert lookups.patience(address) == SILENT_S
        world.wait(lambda: lookups.ask(address))
        assert lookups.patience(address) == PATIENCE_S
    lookups.drop(address)
    world.wait(lambda: not lookups.ask(address) and lookups.patience(address) == REFUSED_S)
    assert "Cannot connect" in lookups.reason(address)
    (never,) = (f"{HOST}:{port}" for port in free_ports(1))
    world.wait(lambda: not lookups.ask(never) and "Cannot connect" in lookups.reason(never))
    assert lookups.patience(never) == PATIENCE_S
    with bootstrap_server(int(address.partition(":")[2])):
        register(address, 0, 7001, size=1)
        world.wait(lambda: lookups.ask(address))
        assert lookups.patience(address) == PATIENCE_S


def test_frozen_servers_hold_up_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_pd_fabric.integration.conn.lookups.REQUEST_S", LIMIT_S)
    frozen = [socket.create_server((HOST, 0)) for _ in range(40)]  # they accept, and never answer
    with bootstrap_server() as address:
        register(address, 0, 7001, size=1)
        silent = [f"{HOST}:{listener.getsockname()[1]}" for listener in frozen]
        for each in silent:
            assert world.lookups.ask(each) is None
        # The good server answers before any of the others can have timed out.
        world.wait(lambda: world.lookups.ask(address))
        assert {world.lookups.reason(each) for each in silent} == {"it has not answered yet"}
    for listener in frozen:
        listener.close()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"hello", "does not answer as a bootstrap server"),
        (200, b"[1, 2]", "does not answer as a bootstrap server"),
        (200, b'{"attn_tp_size": "many"}', "many"),
        (200, b'{"attn_tp_size": 5000}', "more than 4096 ranks"),
        (200, b"x" * 100_000, "more than 65536 bytes"),
        (404, b"no such page", "HTTP 404: no such page"),
        (301, b"", "HTTP 301"),
    ],
)
def test_what_is_no_bootstrap_server_is_named_and_asked_again(
    world: World, status: int, body: bytes, words: str
) -> None:
    asked = 0

    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal asked
            asked += 1
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("location", "http://elsewhere.invalid/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            return

    server = ThreadingHTTPServer((HOST, 0), Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"{HOST}:{server.server_port}"
    world.wait(lambda: not world.lookups.ask(address) and words in world.lookups.reason(address))
    before = asked
    world.wait(lambda: not world.lookups.ask(address) and asked > before)
    server.shutdown()
    server.server_close()


def test_a_dropped_server_is_asked_afresh_and_its_old_answer_is_gone(world: World) -> None:
    with bootstrap_server() as address:
        register(address, 0, 7001, size=1)
        world.wait(lambda: world.lookups.ask(address))
        register(address, 0, 7009, size=1)  # another process has taken its place
        assert world.lookups.rank(address, RankKey(0, 0, 0, 0)) == {"rank_ip": HOST, "rank_port": 7001}
        world.lookups.drop(address)
        assert world.lookups.rank(address, RankKey(0, 0, 0, 0)) is None
        world.wait(lambda: world.lookups.ask(address))
        assert world.lookups.rank(address, RankKey(0, 0, 0, 0)) == {"rank_ip": HOST, "rank_port": 7009}


def test_dp_ranks_of_rooms_come_when_they_are_announced(world: World) -> None:
    with bootstrap_server() as address:
        register(address, 0, 7001, size=1)
        world.wait(lambda: world.lookups.ask(address))
        assert world.lookups.dp_rank(address, 5) is None
        for room, rank in ((5, 3), (6, 0)):
            sent = {"bootstrap_room": room, "dp_rank": rank}
            assert httpx.post(f"http://{address}/register_dp_rank", json=sent).status_code == 200
        assert world.wait(lambda: (rank := world.lookups.dp_rank(address, 5)) is not None and (rank,)) == (3,)
        assert world.wait(lambda: (rank := world.lookups.dp_rank(address, 6)) is not None and (rank,)) == (0,)


def test_an_address_that_nobody_waits_for_is_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_pd_fabric.integration.conn.lookups.INTEREST_S", 0.0)
    monkeypatch.setattr("sglang_pd_fabric.integration.conn.lookups.REQUEST_S", 0.2)
    world.lookups.ask("127.0.0.1:1")
    world.wait(lambda: world.lookups.reason("127.0.0.1:1") == "it was not asked")


SECRET = b"0123456789abcdef"


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Servers that start now have it."""
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    monkeypatch.setenv("SGLANG_PD_FABRIC_SECRET_FILE", str(file))
    return SECRET


def test_a_server_with_a_secret_is_known_to_those_who_have_it_and_forbids_the_others(
    world: World, secret: bytes
) -> None:
    insider, stranger = World(secret), World(b"another secret!!")
    with bootstrap_server() as address:
        register(address, 0, 7001, size=1, secret=secret)
        insider.wait(lambda: insider.lookups.ask(address))
        assert insider.lookups.dp_rank(address, 5) is None  # it asks, signed; nobody has the room
        world.wait(lambda: not world.lookups.ask(address) and world.lookups.forbids(address))
        stranger.wait(lambda: not stranger.lookups.ask(address) and stranger.lookups.forbids(address))
        reasons = [each.lookups.reason(address) for each in (world, stranger)]
        assert "not signed" in reasons[0]
        assert "another secret" in reasons[1]
        assert {kind_of(f"no prefill at bootstrap address {address}: {why}") for why in reasons} == {"secret"}
        assert not world.published
        assert not stranger.published
    insider.lookups.close()
    stranger.lookups.close()


def test_a_server_without_a_secret_forbids_those_who_have_one() -> None:
    insider = World(SECRET)
    with bootstrap_server() as address:
        insider.wait(lambda: not insider.lookups.ask(address) and insider.lookups.forbids(address))
        reason = insider.lookups.reason(address)
    insider.lookups.close()
    assert kind_of(f"no prefill at bootstrap address {address}: {reason}") == "secret"


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
def test_every_rank_hears_that_a_room_was_refused(sealed: bool, request: pytest.FixtureRequest) -> None:
    key: bytes | None = request.getfixturevalue("secret") if sealed else None
    heard: list[Message] = []
    both = threading.Semaphore(0)

    def hear(message: Message) -> None:
        heard.append(message)
        both.release()

    ranks = [Links(HOST, key) for _ in range(2)]
    for rank in ranks:
        rank.start(hear, lambda _peer, _loss: None, lambda: None)
    with bootstrap_server() as address:
        for number, rank in enumerate(ranks):
            register(address, number, rank.endpoint.port, secret=key)
        asyncio.run(refusals._post(f"http://{address}", Refused(77, "too long")))
        assert all(both.acquire(timeout=LIMIT_S) for _ in ranks)
        assert heard == [Refused(77, "too long")] * 2
        answer = httpx.post(f"http://{address}{refusals.PATH}", content=b'{"room": "x"}')
        assert answer.status_code == (401 if sealed else 400)
    for rank in ranks:
        rank.close()


def test_ranks_hear_of_a_renounced_room_when_their_server_is_known(world: World) -> None:
    """An abort may come before decode knows whom it would have asked for the pages."""
    heard: list[Message] = []
    rank, decode = Links(HOST), Links(HOST)
    rank.start(heard.append, lambda _peer, _loss: None, lambda: None)
    renounced = RenouncedRooms(world.lookups, decode)
    decode.start(lambda _message: None, lambda _peer, _loss: None, renounced.tell)
    try:
        with bootstrap_server() as address:
            renounced.add(5, address)
            register(address, 0, rank.endpoint.port, size=1)
            world.wait(lambda: heard)
        assert heard == [Renounced(5)]
    finally:
        decode.close()
        rank.close()
