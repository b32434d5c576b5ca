"""What the two processes of a measurement ask of a contender.

The pair (``pair.py``) owns clocks and checks; a contender only moves pages. ``prepare`` is not timed,
``write`` is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sglang_pd_fabric.tools.bench.workload import Buffer, Draw


class Target(ABC):
    """Where pages arrive. ``buffer`` is None where they arrive in the writer's own process."""

    buffer: Buffer | None = None

    @abstractmethod
    def invitation(self) -> object:
        """What the writer's process needs to connect; goes through pickle."""

    def arm(self, repetition: int) -> object:  # noqa: ARG002  # for those who need it
        """Called before each repetition; the answer is the writer's ``token``."""
        return None

    def wait(self) -> int | None:
        """Waits until every page is here; when that was (``time.monotonic_ns``).

        None for contenders whose target learns nothing: then the writer's own word counts.
        """
        return None

    def settle(self) -> None:  # noqa: B027  # most have no thread of their own that rests
        """Called when the clock has stopped, before CPU time is read."""

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """Ends it in good order."""


class Writer(ABC):
    """Where pages come from. ``landed`` is the target's buffer where it is in this process."""

    landed: Buffer | None = None

    @abstractmethod
    def prepare(self, pages: Draw) -> Any:
        """Page lists in the form that ``write`` takes."""

    @abstractmethod
    def write(self, prepared: Any, repetition: int, token: Any) -> None:
        """Moves the pages and returns when nothing is in flight here any more."""

    def settle(self) -> None:  # noqa: B027  # most have no thread of their own that rests
        """Called when the clock has stopped, before CPU time is read."""

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """Ends it in good order."""
