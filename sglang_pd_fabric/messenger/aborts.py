"""Aborts on the prefill side: those that wait for writes to end, and those that came before their pull."""

from collections.abc import Callable

from cachetools import TTLCache

from sglang_pd_fabric.messenger.messages import Abort, Endpoint, Message, Pull, Quiet
from sglang_pd_fabric.messenger.rooms import REMEMBERED, REMEMBERED_S, PullId


class Aborts:
    """The caller holds its lock around every call.

    Args:
        incarnation: random number of this process start.
        send: passes a control message to a decode rank.
    """

    def __init__(self, incarnation: int, send: Callable[[Endpoint, Message], None]) -> None:
        self._incarnation = incarnation
        self._send = send
        self._early: TTLCache[PullId, bool] = TTLCache(REMEMBERED, REMEMBERED_S)
        self._waiting: dict[PullId, Abort] = {}

    def came_first(self, name: PullId) -> None:
        """No such pull is known: when it comes, nothing may be written for it."""
        self._early[name] = True

    def overtook(self, pull: Pull) -> bool:
        """Whether the pull was aborted before it came."""
        return self._early.pop(PullId.of(pull), False)

    def wait(self, abort: Abort) -> None:
        """It will be answered when nothing of its pull can be written any more."""
        self._waiting[PullId.of(abort)] = abort

    def answer(self, is_over: Callable[[PullId], bool]) -> None:
        """Answers those whose pull is over."""
        for name, abort in list(self._waiting.items()):
            if is_over(name):
                del self._waiting[name]
                self._send(
                    abort.reply,
                    Quiet(abort.prefill, self._incarnation, abort.room, abort.slot, abort.generation),
                )
