"""Stands between decode and prefill: counts every message, may alter a Pull, spoil or slow what is written.

Decode is told of the relay's bootstrap port instead of prefill's. The relay hands decode its own ports in
place of the prefill ranks', and prefill its own in place of decode's, so every control message passes
through it in both directions. The pages go over libfabric, from process to process, unless the relay is
told to stand in their way too (tcp). For prefill the decode behind it is then a decode of its own.
"""

import math
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import httpx
import msgspec
import zmq
from tcp_relay import Fate, TcpRelay

from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.messages import (
    Abort,
    Again,
    Digest,
    Endpoint,
    Hello,
    MalformedMessageError,
    Message,
    Pull,
)

HOST = "127.0.0.1"
Alter = Callable[[Pull], Pull]


class Relay:
    """Between one prefill server and one decode, which uses ``port`` as its bootstrap port.

    Args:
        bootstrap_port: prefill's.
        writes: stand between their NICs too (tcp).
        rate: bytes a second that go over each connection between the NICs.
    """

    def __init__(self, bootstrap_port: int, *, writes: bool = False, rate: float = math.inf) -> None:
        self.seen: Counter[str] = Counter()
        self.alter: Alter = lambda pull: pull
        self._disguise = secrets.randbits(32) | 1 if writes else 0
        self._nics = ExitStack()
        self._rate = rate
        self._buffers: dict[int, tuple[str, int]] = {}  # kind and place, by key
        self._last: dict[str, int] = {}
        self._victim: tuple[str, int] | None = None
        self._fate = Fate.PASSES
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

    def spoil(self, kind: str, place: int, fate: Fate) -> None:
        """What comes next for a buffer ("kv" or "aux", and its place from either end) meets its fate."""
        self._fate, self._victim = fate, (kind, place)

    @property
    def has_spoiled(self) -> bool:
        """Whether it has come."""
        return self._victim is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._nics.close()
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
            message = msgspec.structs.replace(message, reply=Endpoint(HOST, self._link(message.reply)))
            message = self._introduced(message)
        elif isinstance(message, Pull):
            message = self.alter(message)
        return messages.encode(self._disguised(message))

    def _introduced(self, hello: Hello) -> Hello:
        """With our NICs in place of decode's, if we stand between them."""
        if not self._disguise:
            return hello
        for kind, regions in (("kv", hello.kv), ("aux", hello.aux)):
            self._last[kind] = len(regions)
            self._buffers.update({region.keys[0]: (kind, place) for place, region in enumerate(regions)})
        ours = [
            self._nics.enter_context(TcpRelay(address, self._judge, self._rate))
            for address in hello.addresses
        ]
        return msgspec.structs.replace(hello, addresses=tuple(nic.address for nic in ours))

    def _judge(self, key: int) -> Fate:
        kind, place = self._buffers[key]
        if self._victim not in ((kind, place), (kind, place - self._last[kind])):
            return Fate.PASSES
        self._victim = None
        return self._fate

    def _disguised(self, message: Message) -> Message:
        """Prefill knows this decode already, by its own number: here it has another one."""
        if isinstance(message, Hello | Pull | Again | Abort | Digest):
            return msgspec.structs.replace(message, incarnation=message.incarnation ^ self._disguise)
        return message
