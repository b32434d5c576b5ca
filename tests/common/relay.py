"""Between a sender and a receiver's NIC, over tcp: passes bytes on, slows, keeps or loses them.

What it keeps is for the sender as if it lay in a socket on its way.
"""

import socket
import struct
import threading
from contextlib import suppress
from typing import Self

from sglang_pd_fabric.fabric.address import describe_address

AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection


class Relay:
    def __init__(self, address: bytes) -> None:
        host, _, port = describe_address(address).rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._passes = threading.Event()
        self._passes.set()
        self._closed = threading.Event()
        self.rate: float | None = None  # bytes a second towards the receiver, of each connection; None: all
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> bytes:
        """What the sender has to know instead of the receiver's (a sockaddr_in)."""
        host, port = self._listener.getsockname()
        return struct.pack("<H", socket.AF_INET) + struct.pack("!H4s8x", port, socket.inet_aton(host))

    def keep(self) -> None:
        """From now on nothing gets to the receiver. Answers still pass."""
        self._passes.clear()

    def reset(self) -> None:
        """Connections break, and what was kept is lost. New ones pass everything."""
        broken, self._connections = self._connections, []
        for connection in broken:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                connection.shutdown(socket.SHUT_RD)  # wakes who reads from it
            connection.close()
        self._passes.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection(self._target)
                self._connections += [ours, theirs]
                for pump in (self._pump(ours, theirs, True), self._pump(theirs, ours, False)):
                    pump.start()

    def _pump(self, source: socket.socket, sink: socket.socket, kept: bool) -> threading.Thread:
        def run() -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    if kept:
                        self._passes.wait()
                        if self.rate is not None:
                            self._closed.wait(len(data) / self.rate)
                    sink.sendall(data)

        return threading.Thread(target=run, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._listener.close()
        self.reset()
