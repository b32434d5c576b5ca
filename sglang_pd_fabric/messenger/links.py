"""The control plane of one rank: a socket that takes messages, a link to each peer, one thread for all of it.

Sending never waits, from whatever thread, so a peer that stands still delays nobody. What cannot be decoded
is dropped, and an exception in a handler costs that message, never the thread.
"""

import ipaddress
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable

import zmq

from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.complaints import Complaints
from sglang_pd_fabric.messenger.link import QUEUED_MESSAGES, Link, Loss, Patience
from sglang_pd_fabric.messenger.messages import Endpoint, MalformedMessageError, Message
from sglang_pd_fabric.messenger.seal import Dropped, ForeignMessageError, Seal

logger = logging.getLogger(__name__)

LOOK_S = 0.1  # between two looks at the connections; ``tick`` runs at least as often
BATCH = 64  # messages between two looks at everything else
MAX_PEERS = 20_000  # sockets that libzmq makes room for; a peer takes three
LINGER_S = 1.0  # what is queued when we end may take so long to leave

Receive = Callable[[Message], None]
Lost = Callable[[Endpoint, Loss], None]


class Links:
    """Bound when made; takes messages from `start` on.

    Attributes:
        endpoint: where peers send messages to.
        dropped: how many messages were dropped, by why. The links' thread changes it, where ``tick`` runs.

    Args:
        host: IP address to bind to, and to be reached at.
        secret: what all ranks share, so that nobody else can send them messages; None: anybody can.
        patience: when a peer counts as silent.
        port: 0: any that is free.

    Raises:
        zmq.ZMQError: the address cannot be bound to.
        ValueError: ``host`` is no IP address, or one that nobody can connect to.
    """

    def __init__(
        self, host: str, secret: bytes | None = None, patience: Patience | None = None, port: int = 0
    ) -> None:
        address = ipaddress.ip_address(host)
        if address.is_unspecified or address.is_multicast:
            raise ValueError(f"peers cannot be told to connect to {host}")
        self._patience = patience or Patience()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 3 * MAX_PEERS)
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.IPV6, int(address.version == 6))
        self._inbox.setsockopt(zmq.MAXMSGSIZE, messages.MAX_MESSAGE_BYTES)
        # Heartbeats wait behind what is not read yet, so twice as much as a peer may have queued fits.
        self._inbox.setsockopt(zmq.RCVHWM, 2 * QUEUED_MESSAGES)
        self._inbox.setsockopt(zmq.TCP_KEEPALIVE, 1)  # who was cut off leaves no connection behind
        self._inbox.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
        self._inbox.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
        self._inbox.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        try:
            self._inbox.bind(f"tcp://{f'[{host}]' if ':' in host else host}:{port or '*'}")
        except zmq.ZMQError:
            self._context.destroy(linger=0)
            raise
        bound = self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)
        self.endpoint = Endpoint(host, int(bound.rpartition(":")[2]))
        self._seal = Seal(secret, self.endpoint)
        self._links: dict[Endpoint, Link] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # for the end
        self._next_look = 0.0
        self._complaints = Complaints(logger)
        self.dropped: Counter[str] = Counter()
        self._thread: threading.Thread | None = None

    def start(self, receive: Receive, lost: Lost, tick: Callable[[], None]) -> None:
        """Starts the thread, which alone calls these.

        Args:
            receive: gets each message.
            lost: gets a peer that we had sent to, once for each connection, when nobody is there any more.
                What was queued for it is gone. It is forgotten by then: the next ``send`` connects anew.
            tick: runs after whatever happened, and at least every 100 ms.
        """
        self._receive, self._lost, self._tick = receive, lost, tick
        self._thread = threading.Thread(target=self._run, name="pd_fabric_links", daemon=True)
        self._thread.start()

    def send(self, peer: Endpoint, message: Message) -> bool:
        """Queues a message, without waiting. Any thread.

        Returns:
            False if it will not arrive for sure: too much is queued for the peer, its connection has just
            ended, or none can be made. True promises nothing; ``lost`` tells.
        """
        name = type(message).__name__
        try:
            frames = messages.encode(message)
            with self._lock:
                if not self._closed and self._link(peer).push(self._seal.put_on(frames, peer)):
                    return True
            why = "too much is queued for it, or its connection has ended"
        except (zmq.ZMQError, OSError, ValueError) as error:
            why = str(error)
        self._complaints.warn("not sent", "Could not send %s to %s: %s", name, peer, why)
        return False

    def close(self) -> None:
        """Ends the thread. What is queued has a second to leave."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        for link in self._links.values():
            link.close(LINGER_S)
        self._inbox.close(linger=0)
        self._context.term()
        os.close(self._wake)

    # -- inside --------------------------------------------------------------------------------------

    def _link(self, peer: Endpoint) -> Link:
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = Link(self._context, peer, self._patience)
        return link

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._inbox, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        while not self._closed:
            # Links are looked at by the clock: then a message waits no longer because there are many.
            if poller.poll(1 + int(1000 * max(0.0, self._next_look - time.monotonic()))):
                self._guarded(self._take_messages)
            if time.monotonic() >= self._next_look:
                self._next_look = time.monotonic() + LOOK_S
                self._guarded(self._look_after_links)
            self._guarded(self._tick)

    def _look_after_links(self) -> None:
        with self._lock:
            found = [(link, link.look()) for link in self._links.values()]
            gone = [(link.peer, loss) for link, loss in found if loss is not None]
            for peer, _ in gone:
                self._links.pop(peer).close()
        for peer, loss in gone:
            logger.warning("Lost %s: %s", peer, loss.value)
            self._guarded(self._lost, peer, loss)

    def _take_messages(self) -> None:
        for _ in range(BATCH):
            try:
                frames = self._inbox.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = messages.decode(self._seal.take_off(frames))
            except ForeignMessageError as error:
                self._drop(error.kind, f"foreign control message: {error}; see docs/security.md")
            except MalformedMessageError as error:
                self._drop("malformed", f"malformed control message: {error}")
            else:
                self._guarded(self._receive, message)

    def _drop(self, kind: Dropped, what: str) -> None:
        self.dropped[kind] += 1
        self._complaints.warn(kind, "Dropped a %s", what)

    def _guarded(self, action: Callable[..., None], *arguments: object) -> None:
        try:
            action(*arguments)
        except Exception:
            self._complaints.error("handler", "The control thread goes on after an unexpected error")
