"""The demo's traffic against a server that answers at once: it asks until it is left or a request fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_pd_fabric.tools.demo.traffic import KINDS, Askers, Kind, Traffic, main

KIND = Kind((Askers(2, 7, 3), Askers(1, 30, 1)), "")
END = {"finish_reason": {"type": "length"}, "prompt_tokens": 7, "cached_tokens": 0}


class Server(ThreadingHTTPServer):
    """``takes`` requests are answered, the next ones refused."""

    def __init__(self, takes: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.takes = takes
        self.prompts: list[str] = []
        self.hundred = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.prompts.append(body["text"])
        count = len(self.server.prompts)
        if count >= 100:
            self.server.hundred.set()
        refused = count > self.server.takes
        event = {"text": "abc", "output_ids": [1, 2, 3], "meta_info": END}
        content = b"no more" if refused else f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()
        self.send_response(503 if refused else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_unused: object) -> None:
        return


@contextmanager
def serving(takes: int) -> Iterator[Server]:
    with Server(takes) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_it_asks_new_questions_until_it_is_left() -> None:
    with serving(10**6) as server:
        with Traffic(server.url, KIND) as traffic:
            assert {len(prompt) for prompt in server.prompts} == {7, 30}, "each kind has had an answer"
            assert server.hundred.wait(60)
        count = len(server.prompts)
        assert not traffic.failure
    assert len(server.prompts) == count
    long = [prompt for prompt in server.prompts if len(prompt) == 30]
    assert len({*long}) == len(long)


def test_the_first_failure_ends_it() -> None:
    with serving(20) as server, Traffic(server.url, KIND) as traffic:
        traffic.wait()
        assert traffic.failure == "HTTP 503: no more"


def test_entering_does_not_wait_for_answers_that_will_not_come() -> None:
    with serving(0) as server, Traffic(server.url, KIND) as traffic:
        assert "HTTP 503" in traffic.failure


def test_the_command_ends_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(20) as server:
        assert main(["steady", server.url]) == 1
    said = capsys.readouterr()
    assert KINDS["steady"].purpose in said.out
    assert "a request failed: HTTP 503: no more" in said.err
