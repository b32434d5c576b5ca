"""Aborts on the prefill side: those that wait for writes to end, and those that came before their pull."""

import time
from collections import OrderedDict
from collections.abc import Callable

from sglang_pd_fabric.messenger.messages import Abort, Endpoint, Message, Pull, Quiet
from sglang_pd_fabric.messenger.rooms import PullId


class Aborts:
    """The caller holds its lock around every call.

    Args:
        incarnation: random number of this process start.
        send: passes a control message to a decode rank.
    """

    SECONDS = 60.0  # for which a pull may come after its abort
    MOST = 8192

    def __init__(self, incarnation: int, send: Callable[[Endpoint, Message], None]) -> None:
        self._incarnation = incarnation
        self._send = send
        self._early: OrderedDict[PullId, float] = OrderedDict()
        self._waiting: dict[PullId, Abort] = {}

    def came_first(self, name: PullId) -> None:
        """No such pull is known: when it comes, nothing may be written for it."""
        self._early[name] = time.monotonic()
        self._early.move_to_end(name)
        while len(self._early) > self.MOST:
            self._early.popitem(last=False)

    def overtook(self, pull: Pull) -> bool:
        """Whether the pull was aborted before it came."""
        return self._early.pop(PullId.of(pull), None) is not None

    def wait(self, abort: Abort) -> None:
        """It will be answered when nothing of its pull can be written any more."""
        self._waiting[PullId.of(abort)] = abort

    def answer(self, is_over: Callable[[int, PullId], bool]) -> None:
        """Answers those whose pull is over."""
        for name, abort in list(self._waiting.items()):
            if is_over(abort.room, name):
                del self._waiting[name]
                self._send(
                    abort.reply,
                    Quiet(abort.prefill, self._incarnation, abort.room, abort.slot, abort.generation),
                )

    def expire(self) -> None:
        """Forgets pulls that have not come for long."""
        oldest = time.monotonic() - self.SECONDS
        while self._early and next(iter(self._early.values())) < oldest:
            self._early.popitem(last=False)
