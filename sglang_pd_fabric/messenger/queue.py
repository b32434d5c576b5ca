"""Requests that decode has taken in and has no memory for yet: their prefills are told, again and again.

Without that, prefill's time-out for a request that nobody pulls would measure how long decode's queue is.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_pd_fabric.messenger.messages import MAX_ROOMS, Endpoint, Message, Queued
from sglang_pd_fabric.messenger.rooms import REMEMBERED_S

FIRST_S = 0.2  # a request that finds memory at once is pulled long before
EVERY_S = 1.0


@dataclass
class _Waiting:
    writers: tuple[Endpoint, ...]
    due: float  # when its writers are to hear of it


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
        self._rooms: dict[int, _Waiting] = {}
        self._told = time.monotonic()

    def enter(self, room: int, writers: Sequence[Endpoint]) -> None:
        """The room waits from now on."""
        with self._lock:
            self._rooms[room] = _Waiting(tuple(writers), time.monotonic() + FIRST_S)

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
            return [room for room, waiting in self._rooms.items() if prefill in waiting.writers]

    def tell(self) -> list[int]:
        """Tells every prefill rank of rooms that wait for it, soon and then every second. Call it often.

        Returns:
            Rooms that prefill has given up, and forgotten by now: we stood still for that long.
        """
        now = time.monotonic()
        still, self._told = now - self._told, now
        rooms: dict[Endpoint, list[int]] = defaultdict(list)
        with self._lock:
            if still > REMEMBERED_S:
                return list(self._rooms)
            for room, waiting in self._rooms.items():
                if now >= waiting.due:
                    waiting.due = now + EVERY_S
                    for writer in waiting.writers:
                        rooms[writer].append(room)
        for writer, due in rooms.items():
            for first in range(0, len(due), MAX_ROOMS):
                self._send(writer, Queued(writer, self._reply, tuple(due[first : first + MAX_ROOMS])))
        return []
