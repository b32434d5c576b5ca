"""Between a sender and a NIC of a receiver, over tcp: passes bytes on, slows, keeps or breaks them off.

What it keeps is for the sender as if it lay in a socket on its way. It can also look at each write by itself,
as libfabric's tcp provider (2.x) frames them, and lose, alter or break off those that a test is after.
"""

import math
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Self

from sglang_pd_fabric.fabric.address import describe_address

AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing resets the connection

# prov/tcp/src/xnet_proto.h and ofi_proto.h of libfabric 2.x; numbers are in the order of this machine.
_GREETING = 32  # struct ofi_ctrl_hdr; bytes 2 and 3 say, in network order, how many follow
_HEADER = struct.Struct("=BBHBBBBQ")  # version, op, flags, op_data, rma_iov_cnt, hdr_size, -, size of all
_HAS_DATA, _DATA_BYTES = 1, 8  # XNET_REMOTE_CQ_DATA
_TARGET = struct.Struct("=QQQ")  # address, bytes, key


class Fate(Enum):
    """What becomes of a piece of a write."""

    PASSES = "passes"
    IS_LOST = "is lost"  # what follows goes on as if it had never been there
    IS_ALTERED = "is altered"  # its last byte is another
    BREAKS_OFF = "breaks off"  # the connection is reset when half of it has passed


Judge = Callable[[int], Fate]


class TcpRelay:
    """Listens at ``address`` for a receiver's NIC.

    Args:
        address: of the NIC.
        judge: says what becomes of each piece of a write, from the key of the region that it goes to; pieces
            that travel in one message are lost together. Without it bytes pass, whatever they mean.
        rate: bytes a second towards the receiver, of each connection.
    """

    def __init__(self, address: bytes, judge: Judge | None = None, rate: float = math.inf) -> None:
        host, _, port = describe_address(address).rpartition(":")
        self._target = host, int(port)
        self._judge = judge
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._passes = threading.Event()
        self._passes.set()
        self._closed = threading.Event()
        self._rate = rate
        self._lock = threading.Lock()
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

    def go_on(self) -> None:
        """What was kept passes, and all that follows."""
        self._passes.set()

    def reset(self) -> None:
        """Connections break, and what was kept is lost. New ones pass everything."""
        with self._lock:
            broken, self._connections = self._connections, []
        for connection in broken:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
                connection.shutdown(socket.SHUT_RD)  # wakes who reads from it
            connection.close()
        self._passes.set()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                ours, _ = self._listener.accept()
                try:
                    theirs = socket.create_connection(self._target)
                except OSError:
                    ours.close()
                    continue
                with self._lock:
                    self._connections += [ours, theirs]
                forward = self._pass if self._judge is None else self._look
                for pump, *ends in ((forward, ours, theirs), (self._pass_back, theirs, ours)):
                    threading.Thread(target=_until_closed, args=(pump, *ends), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(1 << 16):
            self._hold(len(data))
            sink.sendall(data)

    def _pass_back(self, source: socket.socket, sink: socket.socket) -> None:
        while data := source.recv(1 << 16):
            sink.sendall(data)

    def _look(self, source: socket.socket, sink: socket.socket) -> None:
        """Passes on what is framed, one write at a time."""
        assert self._judge is not None
        with source.makefile("rb") as stream:
            greeting = stream.read(_GREETING)
            sink.sendall(greeting + stream.read(int.from_bytes(greeting[2:4], "big")))
            while header := stream.read(_HEADER.size):
                nbytes = _HEADER.unpack(header)[-1]
                whole = bytearray(header + stream.read(nbytes - len(header)))
                fates = [self._judged(whole, *part) for part in _parts(whole)]
                self._hold(nbytes)
                if Fate.BREAKS_OFF in fates:
                    sink.sendall(whole[: nbytes // 2])
                    self.reset()
                    return
                if Fate.IS_LOST not in fates:
                    sink.sendall(whole)

    def _hold(self, nbytes: int) -> None:
        self._passes.wait()
        self._closed.wait(nbytes / self._rate)

    def _judged(self, whole: bytearray, key: int, end: int) -> Fate:
        assert self._judge is not None
        fate = self._judge(key)
        if fate is Fate.IS_ALTERED:
            whole[end - 1] ^= 1
        return fate

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._listener.close()
        self.reset()


def _parts(whole: bytes) -> Iterator[tuple[int, int]]:
    """Key of the region and end within the message, of each piece that is not empty."""
    _version, _op, flags, _data, targets, place, _, _nbytes = _HEADER.unpack_from(whole)
    first = _HEADER.size + _DATA_BYTES * bool(flags & _HAS_DATA)
    for target in range(targets):
        _address, nbytes, key = _TARGET.unpack_from(whole, first + target * _TARGET.size)
        place += nbytes
        if nbytes:
            yield key, place


def _until_closed(
    pump: Callable[[socket.socket, socket.socket], None], source: socket.socket, sink: socket.socket
) -> None:
    """One end closes with the other."""
    with suppress(OSError):
        pump(source, sink)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
