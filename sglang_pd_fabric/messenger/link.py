"""The way out to one peer: a PUSH socket, and how we learn that nobody is there any more.

libzmq sends heartbeats and answers them on a thread of its own. A peer whose Python is busy, or holds the
GIL, therefore answers; one that was stopped, or is cut off, does not. What libzmq says when a connection has
ended is the same either way, so we keep a second descriptor of the connection and ask the kernel: if the
other end closed it, the process is gone.
"""

import errno
import ipaddress
import itertools
import os
import select
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum

import zmq
from zmq.utils.monitor import parse_monitor_message

from sglang_pd_fabric.messenger.messages import Endpoint

QUEUED_MESSAGES = 10_000  # that a peer has not taken yet
_WATCHED = zmq.EVENT_CONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED
_MONITORS = itertools.count()
_CLOSED_BY_PEER = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Loss(Enum):
    """How a peer was lost; the value is for messages.

    DEAD: its kernel closed the connection or refused it, as it does when the process has ended. What the
    process had sent before may still arrive by other ways.
    SILENT: nothing comes back. It may be frozen or cut off, and go on later.
    """

    DEAD = "its process has ended"
    SILENT = "it does not answer: frozen, or cut off"


@dataclass(frozen=True)
class Patience:
    """Seconds.

    Attributes:
        heartbeat: between two heartbeats.
        silence: after an unanswered heartbeat, or without a connection, until a peer is SILENT.
    """

    heartbeat: float = 1.0
    silence: float = 5.0


class Link:
    """One connection, never made twice. Its owner holds a lock around every call.

    Raises:
        ValueError: the peer's host is no IP address. Names are not looked up: that can take seconds.
        zmq.ZMQError: there are no sockets left.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], peer: Endpoint, patience: Patience) -> None:
        self.peer = peer
        self._address = ipaddress.ip_address(peer.host)
        self._patience = patience
        self._born = time.monotonic()
        self._connected = False
        self._connection: socket.socket | None = None
        self._probe: socket.socket | None = None
        self._probe_ends = 0.0
        with ExitStack() as stack:
            self._socket = stack.enter_context(context.socket(zmq.PUSH))
            self._configure()
            name = f"inproc://link-{next(_MONITORS)}"
            self._monitor = stack.enter_context(self._socket.get_monitor_socket(_WATCHED, name))
            self._socket.connect(address_of(peer))
            stack.pop_all()

    def push(self, frames: list[bytes]) -> bool:
        """Queues a message. False: the queue is full, or the connection has ended."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def look(self) -> Loss | None:
        """Takes in what has happened, without waiting. Returns how the peer was lost, once that is known."""
        if self._probe is not None:
            return self._look_at_probe()
        while True:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return None
            if event["event"] == zmq.EVENT_CONNECTED:
                self._connected = True
                self._connection = _second_descriptor(event["value"], str(self._address), self.peer.port)
            elif event["event"] in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
                return self._ended()

    def close(self, linger: float = 0.0) -> None:
        """Lets go of everything. ``linger``: seconds that what is queued may still take to leave."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=int(linger * 1000))
        for each in (self._connection, self._probe):
            if each is not None:
                each.close()

    def _configure(self) -> None:
        silence = int(self._patience.silence * 1000)
        self._socket.setsockopt(zmq.IPV6, int(self._address.version == 6))
        self._socket.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, int(self._patience.heartbeat * 1000))
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, silence)
        self._socket.setsockopt(zmq.CONNECT_TIMEOUT, silence)
        self._socket.setsockopt(zmq.HANDSHAKE_IVL, silence)

    def _ended(self) -> Loss | None:
        if self._connection is None:
            # It had ended before we looked. A heartbeat, or the handshake, is missed later than that.
            brief = self._connected and time.monotonic() - self._born < self._patience.silence
            return Loss.DEAD if brief else self._begin_probe()
        poll = select.poll()
        poll.register(self._connection, _CLOSED_BY_PEER)
        return Loss.DEAD if poll.poll(0) else Loss.SILENT

    def _begin_probe(self) -> Loss | None:
        """libzmq does not say why it could not connect, so we try once ourselves."""
        family = socket.AF_INET6 if self._address.version == 6 else socket.AF_INET
        try:
            self._probe = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._probe.connect((str(self._address), self.peer.port))
        except ConnectionRefusedError:
            return Loss.DEAD
        except BlockingIOError:
            self._probe_ends = time.monotonic() + self._patience.heartbeat
            return None
        except OSError:
            return Loss.SILENT
        return Loss.SILENT

    def _look_at_probe(self) -> Loss | None:
        assert self._probe is not None
        poll = select.poll()
        poll.register(self._probe, select.POLLOUT)
        if not poll.poll(0):
            return Loss.SILENT if time.monotonic() > self._probe_ends else None
        refused = self._probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
        return Loss.DEAD if refused else Loss.SILENT


def address_of(endpoint: Endpoint) -> str:
    """The endpoint as libzmq writes it."""
    return f"tcp://[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else f"tcp://{endpoint}"


def _second_descriptor(descriptor: int, host: str, port: int) -> socket.socket | None:
    """Of libzmq's connection to the peer; None if that was closed before we came."""
    try:
        connection = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    try:
        if connection.getpeername()[:2] == (host, port):
            return connection
    except OSError:
        pass
    connection.close()
    return None
