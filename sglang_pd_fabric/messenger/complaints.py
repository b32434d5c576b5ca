"""Warnings about what strangers send: one of each kind in a while, so that nobody can fill the log."""

import logging
import threading
import time

EVERY_S = 10.0


class Complaints:
    """Logs warnings, of each kind at most one in ten seconds, and says how many it left out. Any thread."""

    def __init__(self, logger: logging.Logger, every: float = EVERY_S) -> None:
        self._logger = logger
        self._every = every
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}
        self._silent: dict[str, int] = {}

    def warn(self, kind: str, text: str, *arguments: object) -> None:
        """Logs ``text % arguments`` unless one of this kind was logged a moment ago.

        Args:
            kind: one of a few words of ours, never anything that a peer chose.
        """
        more = self._due(kind)
        if more is not None:
            self._logger.warning(text + "%s", *arguments, more)

    def error(self, kind: str, text: str) -> None:
        """The same for the exception that is being handled, with its traceback."""
        more = self._due(kind)
        if more is not None:
            self._logger.exception("%s%s", text, more)

    def _due(self, kind: str) -> str | None:
        """What to append to the line, or None when it is not time for another."""
        with self._lock:
            now = time.monotonic()
            if now - self._said.get(kind, now - self._every) < self._every:
                self._silent[kind] = self._silent.get(kind, 0) + 1
                return None
            self._said[kind] = now
            silent = self._silent.pop(kind, 0)
        return f" ({silent} more like it were not logged)" if silent else ""
