"""Stands between decode and prefill, on the control channel only: counts messages, may alter Hello and Pull.

Decode is told of the relay's bootstrap port instead of prefill's. The relay hands decode its own ports in
place of the prefill ranks', and prefill its own in place of decode's, so every control message passes
through it in both directions. The pages do not: they go over libfabric, from process to process, or to the
addresses that an altered Hello has.
"""

import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import httpx
import msgspec
import zmq

from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.messages import Endpoint, Hello, MalformedMessageError, Pull

HOST = "127.0.0.1"
Alter = Callable[[Pull], Pull]
AlterHello = Callable[[Hello], Hello]


class Relay:
    """Between one prefill server and whoever uses ``port`` as its bootstrap port."""

    def __init__(self, bootstrap_port: int) -> None:
        self.seen: Counter[str] = Counter()
        self.alter: Alter = lambda pull: pull
        self.alter_hello: AlterHello = lambda hello: hello
        self._target = f"http://{HOST}:{bootstrap_port}"
        self._context = zmq.Context()
        self._links: dict[Endpoint, int] = {}
        self._routes: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._http = ThreadingHTTPServer((HOST, 0), self._handler())
        self.port = self._http.server_port
        self._threads = [
            threading.Thread(target=self._http.serve_forever, daemon=True),
            threading.Thread(target=self._pump, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._context.destroy(linger=0)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        relay = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                reply = httpx.get(relay._target + self.path)
                body = reply.content
                if reply.headers.get("content-type", "").startswith("application/json"):
                    body = msgspec.json.encode(relay._rewritten(reply.json()))
                self.send_response(reply.status_code)
                self.send_header("content-type", reply.headers.get("content-type", "text/plain"))
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: object) -> None:
                return

        return Handler

    def _rewritten(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "rank_port" in answer:
            answer["rank_port"] = self._link(Endpoint(answer["rank_ip"], int(answer["rank_port"])))
            answer["rank_ip"] = HOST
        return answer

    def _link(self, real: Endpoint) -> int:
        """A port of ours whose messages go on to the real endpoint."""
        with self._lock:
            if real not in self._links:
                inward, outward = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
                self._links[real] = inward.bind_to_random_port(f"tcp://{HOST}")
                outward.connect(f"tcp://{real.host}:{real.port}")
                self._routes[inward] = outward
            return self._links[real]

    def _pump(self) -> None:
        while not self._stop.is_set():
            poller = zmq.Poller()
            with self._lock:
                for inward in self._routes:
                    poller.register(inward, zmq.POLLIN)
            for inward, _event in poller.poll(50):
                self._routes[inward].send_multipart(self._passed_on(inward.recv_multipart()))

    def _passed_on(self, frames: list[bytes]) -> list[bytes]:
        try:
            message = messages.decode(frames)
        except MalformedMessageError:
            self.seen[frames[0].decode(errors="replace")] += 1
            return frames
        self.seen[type(message).__name__] += 1
        if isinstance(message, Hello):
            reply = Endpoint(HOST, self._link(message.reply))
            message = self.alter_hello(msgspec.structs.replace(message, reply=reply))
        elif isinstance(message, Pull):
            message = self.alter(message)
        return messages.encode(message)
