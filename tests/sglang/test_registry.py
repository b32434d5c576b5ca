"""Our bootstrap server over real HTTP: who may register, what is taken, and when it answers.

No SGLang server runs here; importing SGLang costs about 10 seconds.
"""

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("sglang", reason="SGLang is not installed: pip install 'sglang-pd-fabric[sglang]'")

from sglang_pd_fabric.integration.conn import registry
from sglang_pd_fabric.integration.conn.credentials import HEADER, is_neighbour, sign
from sglang_pd_fabric.integration.conn.registering import RegistrationError, register
from sglang_pd_fabric.integration.conn.registry import MAX_BODY, PortTakenError, RegistryServer
from sglang_pd_fabric.settings import SettingError
from sglang_pd_fabric.tools.demo.servers import free_ports

HOST = "127.0.0.1"
SECRET = b"0123456789abcdef"
EVERYBODY = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
SECOND = "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=1&target_pp_rank=0"
WRONG: tuple[dict[str, Any], ...] = (
    {"rank_port": "4000; rm"},
    {"rank_port": 0},
    {"rank_port": 70000},
    {"rank_ip": "0.0.0.0"},
    {"rank_ip": "evil.example"},
    {"rank_ip": 5},
    {"attn_tp_rank": 2},
    {"attn_tp_rank": -1},
    {"attn_tp_size": 0},
    {"attn_tp_size": 1 << 40},
    {"attn_tp_size": 1 << 16, "pp_size": 1 << 16},
    {"page_size": None},
    {"page_size": "sixteen"},
    {"kv_cache_dtype": ["float32"]},
    {"kv_layout": "x" * 1000},
    {"attn_dp_rank": 1.5},
)
PATHS = ("/route", "/register_dp_rank", "/query_dp_ranks", "/nowhere")


def rank(number: int = 0, **changed: Any) -> dict[str, Any]:
    """What rank 0 or 1 of a prefill server with TP 2 says of itself."""
    entry = {
        "attn_tp_size": 2,
        "attn_tp_rank": number,
        "attn_cp_size": 1,
        "attn_cp_rank": 0,
        "attn_dp_size": 1,
        "attn_dp_rank": 0,
        "pp_size": 1,
        "pp_rank": 0,
        "system_dp_size": 1,
        "system_dp_rank": 0,
        "rank_ip": HOST,
        "rank_port": 4000 + number,
        "page_size": 16,
        "kv_cache_dtype": "float32",
        "kv_layout": "nhd",
        "dsv41_spec_layout": None,
        "load_balance_method": "follow_bootstrap_room",
        "enable_dsa_cache_layer_split": False,
        "enable_kv_cache_sharding": False,
        "prefill_http_port": 30000,
        "decode_allocation_policy": "early",
    }
    return {**entry, **changed}


class Client:
    """Asks one server, with a secret or without."""

    def __init__(self, port: int, secret: bytes | None) -> None:
        self.url = f"http://{HOST}:{port}"
        self.secret = secret
        self._http = httpx.Client(timeout=60)

    def get(self, path: str) -> httpx.Response:
        return self._http.get(self.url + path, headers=sign(self.secret, "GET", path))

    def send(self, method: str, path: str, body: bytes) -> httpx.Response:
        headers = sign(self.secret, method, path, body)
        return self._http.request(method, self.url + path, content=body, headers=headers)

    def put(self, entry: object) -> httpx.Response:
        return self.send("PUT", "/route", json.dumps(entry).encode())


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, folder: Path, secret: bytes | None) -> Iterator[Client]:
    if secret is not None:
        file = folder / "secret"
        file.write_bytes(secret)
        file.chmod(0o600)
        monkeypatch.setenv("SGLANG_PD_FABRIC_SECRET_FILE", str(file))
    server = RegistryServer(HOST, free_ports(1)[0])
    try:
        yield Client(server.port, secret)
    finally:
        server.close()


@pytest.fixture(params=[None, SECRET], ids=["open", "sealed"])
def client(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Client]:
    with served(monkeypatch, tmp_path, request.param) as client:
        yield client


@pytest.fixture
def sealed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Client]:
    with served(monkeypatch, tmp_path, SECRET) as client:
        yield client


def test_it_is_ready_when_every_rank_has_registered_and_each_counts_once(client: Client) -> None:
    assert client.get(EVERYBODY).status_code == 503
    for _ in range(3):
        assert client.put(rank(0)).status_code == 200
        assert client.get(EVERYBODY).status_code == 503
        assert client.get(SECOND).status_code == 503
    assert client.put(rank(1)).status_code == 200
    assert client.get(EVERYBODY).json()["attn_tp_size"] == 2
    assert client.get(SECOND).json() == {"rank_ip": HOST, "rank_port": 4001}


def test_a_rank_that_registers_again_takes_its_own_place(client: Client) -> None:
    for number in (0, 1):
        client.put(rank(number))
    assert client.put(rank(1, rank_port=5001)).status_code == 200
    assert client.get(SECOND).json()["rank_port"] == 5001


def test_wrong_types_and_values_are_refused(client: Client) -> None:
    for changed in WRONG:
        assert client.put(rank(0, **changed)).status_code == 400, changed
    for number in (0, 1):
        assert client.put(rank(number)).status_code == 200
    assert client.get(EVERYBODY).status_code == 200


def test_a_rank_that_speaks_of_other_sizes_is_refused(client: Client) -> None:
    client.put(rank(0))
    answer = client.put(rank(1, attn_tp_size=4))
    assert (answer.status_code, "others of" in answer.text) == (400, True)


def test_bodies_have_a_limit(client: Client) -> None:
    assert client.put({**rank(0), "kv_layout": "x" * MAX_BODY}).status_code == 413
    assert client.get("/health").status_code == 200


def test_random_requests_are_refused_and_it_goes_on(client: Client) -> None:
    source = random.Random(13)
    good = json.dumps(rank(0)).encode()
    statuses = set()
    for _ in range(300):
        method = source.choice(["PUT", "POST", "GET", "DELETE", "PATCH"])
        path = source.choice(
            ["/route", "/register_dp_rank", "/query_dp_ranks", "/nowhere", SECOND[:40] + "x"]
        )
        body = source.choice(
            [
                source.randbytes(50),
                good[: source.randrange(len(good))],
                json.dumps(source.choice([None, 5, [], {}, "x", [[[]]], {"bootstrap_rooms": [-1]}])).encode(),
                json.dumps({"bootstrap_room": "x", "dp_rank": 1}).encode(),
                b"[" * 5000,
            ]
        )
        statuses.add(client.send(method, path, body).status_code)
    assert statuses <= {400, 404, 405, 503}, statuses
    for number in (0, 1):
        assert client.put(rank(number)).status_code == 200
    assert client.get(EVERYBODY).status_code == 200


def test_the_rank_of_a_room_is_told_and_asked_for(client: Client) -> None:
    room = (1 << 63) - 1
    told = client.send(
        "POST", "/register_dp_rank", json.dumps({"bootstrap_room": room, "dp_rank": 3}).encode()
    )
    assert told.status_code == 200
    asked = client.send("POST", "/query_dp_ranks", json.dumps({"bootstrap_rooms": [room, 5]}).encode())
    assert asked.json() == {str(room): 3}


def test_without_the_secret_nothing_can_be_changed_or_asked(sealed: Client) -> None:
    for secret in (None, b"another secret!!"):
        stranger = Client(int(sealed.url.rpartition(":")[2]), secret)
        assert stranger.put(rank(0)).status_code == 401
        answer = stranger.get(EVERYBODY)
        assert (answer.status_code, "SGLANG_PD_FABRIC_SECRET_FILE" in answer.text) == (401, True)
        assert stranger.get("/health").status_code == 200


def test_a_recorded_registration_does_not_bring_an_old_port_back(sealed: Client) -> None:
    body = json.dumps(rank(1)).encode()
    headers = sign(SECRET, "PUT", "/route", body)
    assert httpx.put(sealed.url + "/route", content=body, headers=headers).status_code == 200
    assert sealed.put(rank(1, rank_port=5001)).status_code == 200
    assert httpx.put(sealed.url + "/route", content=body, headers=headers).status_code == 409
    sealed.put(rank(0))
    assert sealed.get(SECOND).json()["rank_port"] == 5001


def test_a_signature_that_is_none_is_refused(sealed: Client) -> None:
    for header in ("", ":", "x:y", "1" * 30 + ":00", "1:" + "0" * 64, "²:" + "0" * 64):
        answer = httpx.get(sealed.url + EVERYBODY, headers={HEADER: header.encode()})
        assert answer.status_code == 401, header


def test_who_signs_is_told_that_the_server_has_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with served(monkeypatch, tmp_path, None) as client:
        client.secret = SECRET
        answer = client.get(EVERYBODY)
        assert (answer.status_code, "has none" in answer.text) == (403, True)


def test_strangers_cannot_register_where_there_is_no_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with served(monkeypatch, tmp_path, None) as client:
        monkeypatch.setattr(registry, "is_neighbour", lambda _address: is_neighbour("198.51.100.7"))
        assert client.put(rank(0)).status_code == 403
        assert client.get(EVERYBODY).status_code == 503


def test_neighbours_are_those_in_a_network_of_this_machine() -> None:
    assert is_neighbour("127.0.0.1")
    assert is_neighbour("::1")
    assert is_neighbour("::ffff:127.0.0.1")
    assert not is_neighbour("198.51.100.7")
    assert not is_neighbour("2001:db8::7")
    assert not is_neighbour("nonsense")


def test_a_port_that_is_taken_ends_the_start_with_the_port_and_a_hint() -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"{HOST}:{port}.*--disaggregation-bootstrap-port"):
            RegistryServer(HOST, port)


def test_a_wrong_secret_file_ends_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SGLANG_PD_FABRIC_SECRET_FILE", str(tmp_path / "missing"))
    with pytest.raises(SettingError):
        RegistryServer(HOST, free_ports(1)[0])


def test_a_rank_waits_for_a_server_that_is_not_there_yet() -> None:
    port = free_ports(1)[0]
    waiting = threading.Thread(target=register, args=(None, f"http://{HOST}:{port}", "/route", rank(0)))
    waiting.start()
    server = RegistryServer(HOST, port)
    try:
        waiting.join(60)
        assert not waiting.is_alive()
        assert server.prefill_port_table
    finally:
        server.close()


def test_a_rank_that_is_refused_says_why_and_does_not_start(sealed: Client) -> None:
    with pytest.raises(RegistrationError, match=r"401.*SGLANG_PD_FABRIC_SECRET_FILE"):
        register(None, sealed.url, "/route", rank(0))
