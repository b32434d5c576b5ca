"""Requests that ended on decode before it asked for their pages: prefill is told, or it would wait.

An aborted Pull is the messenger's business. Without a Pull prefill knows of no decode that waits for the
room, and would keep the request until SGLang's time-out.
"""

import threading
import time

from sglang_pd_fabric.integration.conn.lookups import Lookups
from sglang_pd_fabric.messenger.links import Links
from sglang_pd_fabric.messenger.messages import Renounced

PATIENCE_S = 10.0  # for which a bootstrap server may take to name its ranks


class RenouncedRooms:
    """Rooms whose prefill ranks are still to be told.

    Args:
        lookups: knows the ranks behind a bootstrap server's address.
        links: to them.
    """

    def __init__(self, lookups: Lookups, links: Links) -> None:
        self._lookups = lookups
        self._links = links
        self._lock = threading.Lock()
        self._rooms: dict[int, tuple[float, str]] = {}

    def add(self, room: int, server: str) -> None:
        """Decode has ended the room, which it would have pulled from the server at that address."""
        with self._lock:
            self._rooms[room] = (time.monotonic(), server)

    def tell(self) -> None:
        """Tells the ranks that are known by now. To be called often."""
        with self._lock:
            waiting = list(self._rooms.items())
        for room, (since, server) in waiting:
            self._lookups.ask(server)
            ranks = self._lookups.ranks(server)
            for rank in ranks:
                self._links.send(rank, Renounced(room))
            if ranks or time.monotonic() - since > PATIENCE_S:
                with self._lock:
                    self._rooms.pop(room, None)
