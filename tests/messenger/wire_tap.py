"""A TCP proxy that swallows everything from one moment on: a peer that is cut off."""

import selectors
import socket
import threading
from typing import Self

HOST = "127.0.0.1"


class Proxy:
    """Passes on whatever comes to ``port``, until it is told to swallow it."""

    def __init__(self, target_port: int) -> None:
        self._target = (HOST, target_port)
        self._server = socket.create_server((HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self.swallowing = False
        self._stop = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]

    def _run(self) -> None:
        while not self._stop.is_set():
            for key, _event in self._selector.select(0.05):
                if key.fileobj is self._server:
                    self._accept()
                else:
                    self._pass_on(key.fileobj, key.data)  # type: ignore[arg-type]

    def _accept(self) -> None:
        here, _ = self._server.accept()
        there = socket.create_connection(self._target)
        self._selector.register(here, selectors.EVENT_READ, there)
        self._selector.register(there, selectors.EVENT_READ, here)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        data = source.recv(1 << 16)
        if data and not self.swallowing:
            target.sendall(data)
        elif not data:
            for each in (source, target):
                if each.fileno() >= 0:
                    self._selector.unregister(each)
                    each.close()
