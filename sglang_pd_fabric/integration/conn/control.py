"""The control thread of a rank: takes messages off the manager's socket and looks after things in between.

One bad message or one exception costs that message, never the thread.
"""

import logging
import threading
from collections.abc import Callable

import zmq

logger = logging.getLogger(__name__)

# How often ``tick`` runs when no message comes.
TICK_MS = 100


class ControlThread:
    """Runs ``handle`` for each multipart message and ``tick`` at least every 100 ms, on one thread.

    Args:
        socket: a bound PULL socket; nobody else may read from it.
        handle: gets the frames of one message.
        tick: gets nothing; for deadlines and clean-up.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], handle: Callable[[list[bytes]], None], tick: Callable[[], None]
    ) -> None:
        self._socket = socket
        self._handle = handle
        self._tick = tick
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pd_fabric_control", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        while not self._stop.is_set():
            if poller.poll(TICK_MS):
                self._guarded(self._receive)
            self._guarded(self._tick)

    def _receive(self) -> None:
        self._handle(self._socket.recv_multipart())

    @staticmethod
    def _guarded(action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            logger.exception("The control thread goes on after an error that should not have happened")
