"""Requests that decode has taken in and has no memory for yet: their prefills are told, again and again.

Without that, prefill's time-out for a request that nobody pulls would measure how long decode's queue is.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from sglang_pd_fabric.messenger.messages import MAX_ROOMS, Endpoint, Message, Queued

EVERY_S = 0.5


class DecodeQueue:
    """Rooms that wait on decode, and who waits for their Pull.

    Args:
        reply: this rank's control endpoint.
        send: passes a control message to a prefill rank; must not raise for an unreachable one.
    """

    def __init__(self, reply: Endpoint, send: Callable[[Endpoint, Message], None]) -> None:
        self._reply = reply
        self._send = send
        self._lock = threading.Lock()
        self._rooms: dict[int, tuple[float, tuple[Endpoint, ...]]] = {}
        self._told = 0.0

    def enter(self, room: int, writers: Sequence[Endpoint]) -> None:
        """The room waits from now on."""
        with self._lock:
            self._rooms[room] = (time.monotonic(), tuple(writers))

    def leave(self, room: int) -> None:
        """The room was pulled, or is over."""
        with self._lock:
            self._rooms.pop(room, None)

    def waits(self, room: int) -> bool:
        with self._lock:
            return room in self._rooms

    def waiting_for(self, prefill: Endpoint) -> list[int]:
        """Rooms whose Pull this prefill rank would get."""
        with self._lock:
            return [room for room, (_since, writers) in self._rooms.items() if prefill in writers]

    def tell(self) -> None:
        """Tells every prefill rank of the rooms that have waited for a while. To be called often."""
        now = time.monotonic()
        if now - self._told < EVERY_S:
            return
        self._told = now
        rooms: dict[Endpoint, list[int]] = defaultdict(list)
        with self._lock:
            for room, (since, writers) in self._rooms.items():
                if now - since >= EVERY_S:
                    for writer in writers:
                        rooms[writer].append(room)
        for writer, waiting in rooms.items():
            for first in range(0, len(waiting), MAX_ROOMS):
                self._send(writer, Queued(writer, self._reply, tuple(waiting[first : first + MAX_ROOMS])))
