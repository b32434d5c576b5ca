"""The soak's traffic against servers that answer wrongly, half, or not at all: each is told apart."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pytest

from sglang_pd_fabric.tools.demo.client import Answer
from sglang_pd_fabric.tools.demo.cluster import Cluster
from sglang_pd_fabric.tools.demo.prompts import Question
from sglang_pd_fabric.tools.soak import judge
from sglang_pd_fabric.tools.soak.records import ROUTER, Ask, Ending, Outcome
from sglang_pd_fabric.tools.soak.traffic import Traffic

RIGHT = Answer("abcd", (97, 98, 99, 100), (), "length")
NOBODY = "http://127.0.0.1:9"


class Handler(BaseHTTPRequestHandler):
    """Does what the prompt says."""

    server: Peer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body))
        if self.path == "/abort_request":
            self.server.aborted.set()
            self._say(200, {})
            return
        what = body["text"]
        tokens = [*RIGHT.tokens[:-1], 7] if what == "wrong" else [*RIGHT.tokens]
        if what == "hang":
            self.server.over.wait()
        elif what == "wait for the abort":
            self.server.aborted.wait()
            self._say(500, {"error": "aborted"})
        elif what == "refuse":
            self._say(500, {"error": "the transfer failed"})
        elif what == "empty":
            self._say(200, {"text": "", "output_ids": [], "meta_info": {"finish_reason": {"type": "length"}}})
        elif body["stream"]:
            self._stream(tokens, whole=what != "break")
        else:
            self._say(200, reply(tokens))

    def _say(self, status: int, content: dict[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, tokens: list[int], *, whole: bool) -> None:
        half = f"data: {json.dumps(reply(tokens[:2], finish=False))}\n\n".encode()
        rest = f"data: {json.dumps(reply(tokens))}\n\ndata: [DONE]\n\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(half) + len(rest)))
        self.end_headers()
        self.wfile.write(half + rest if whole else half)

    def log_message(self, *_unused: object) -> None:
        return


def reply(tokens: list[int], *, finish: bool = True) -> dict[str, Any]:
    reason = {"type": "length"} if finish else None
    return {"text": bytes(tokens).decode(), "output_ids": tokens, "meta_info": {"finish_reason": reason}}


class Peer(ThreadingHTTPServer):
    """A server that answers in threads."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.aborted, self.over = threading.Event(), threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@dataclass
class Named:
    name: str
    url: str


class Place:
    """What traffic needs of a cluster."""

    def __init__(self, prefill: str, decode: str) -> None:
        self.prefills, self.decodes = [Named("prefill-0", prefill)], [Named("decode-0", decode)]
        self.servers = (*self.prefills, *self.decodes)
        self.url = decode
        self.bootstrap_ports = [8998]


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as running:
        yield running
        running.over.set()
        running.shutdown()


def outcome(place: Place, prompt: str, **ask: Any) -> Outcome:
    """How one request ends."""
    ended: list[Outcome] = []
    begin = time.monotonic()
    question = Question("q", prompt, answer_tokens=len(RIGHT.tokens))
    traffic = Traffic(
        cast(Cluster, place), [question], [RIGHT], lambda: time.monotonic() - begin, [], ended.append, "test"
    )
    given = {"stream": False, "door": "decode-0", **ask}
    asyncio.run(traffic.run(iter([Ask(0, 0, len(RIGHT.tokens), **given)]), 1))
    assert not traffic.under_way
    (only,) = ended
    return only


@pytest.mark.parametrize("door", ["decode-0", ROUTER])
@pytest.mark.parametrize("stream", [False, True])
def test_a_right_answer_is_equal_through_every_door(peer: Peer, door: str, stream: bool) -> None:
    assert outcome(Place(peer.url, peer.url), "right", door=door, stream=stream).ending is Ending.EQUAL
    rooms = {body.get("bootstrap_room") for _, body in peer.asked}
    assert len(peer.asked) == (1 if door == ROUTER else 2)
    assert len(rooms) == 1


@pytest.mark.parametrize(
    ("prompt", "stream", "ending"),
    [
        ("wrong", False, Ending.SUSPECT),
        ("wrong", True, Ending.SUSPECT),
        ("empty", False, Ending.EMPTY),
        ("refuse", False, Ending.ERROR),
        ("refuse", True, Ending.ERROR),
        ("break", True, Ending.ERROR),
    ],
)
def test_what_is_no_right_answer_is_told(peer: Peer, prompt: str, stream: bool, ending: Ending) -> None:
    found = outcome(Place(peer.url, peer.url), prompt, stream=stream)
    assert found.ending is ending
    assert found.reason
    assert found.answer.tokens == ((*RIGHT.tokens[:-1], 7) if ending is Ending.SUSPECT else ())


def test_a_request_without_an_end_has_hung(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "ANSWER_S", 0.5)
    found = outcome(Place(peer.url, peer.url), "hang")
    assert found.ending is Ending.HUNG
    assert "waited for" in found.reason


def test_a_server_that_is_not_there_is_an_error_at_once(peer: Peer) -> None:
    assert "decode cannot be reached" in outcome(Place(peer.url, NOBODY), "right").reason
    assert "prefill cannot be reached" in outcome(Place(NOBODY, peer.url), "hang").reason


@pytest.mark.parametrize("retreat", ["abort on prefill", "abort on decode"])
def test_an_abort_reaches_the_server_with_the_id_of_its_request(peer: Peer, retreat: str) -> None:
    found = outcome(Place(peer.url, peer.url), "wait for the abort", retreat=retreat, after_s=0.05)
    assert found.ending is Ending.TAKEN_BACK
    asked = {path: body["rid"] for path, body in peer.asked}
    assert asked["/abort_request"] == asked["/generate"]


def test_a_client_that_hangs_up_waits_for_nothing(peer: Peer) -> None:
    found = outcome(Place(peer.url, peer.url), "hang", retreat="hang up", after_s=0.05)
    assert (found.ending, found.reason) == (Ending.TAKEN_BACK, "hung up")
