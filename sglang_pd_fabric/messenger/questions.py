"""What decode asks the writers of its rooms, again and again until it is answered.

A message can be lost with its connection, and so can an answer. An abort that is not confirmed holds pages.
Bad news that is lost would leave a request waiting for bytes that nobody is going to send: prefill gives up a
decode that stands still, and the decode that wakes up must come to know that.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable

from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import MAX_ASKED, Abort, Counting, Endpoint, Message, PullName
from sglang_pd_fabric.messenger.prefills import Prefills
from sglang_pd_fabric.messenger.receiving import ReceivingRoom
from sglang_pd_fabric.messenger.states import ReceiveState

logger = logging.getLogger(__name__)

# Seconds in which we are awake.
ABORT_AGAIN_S = 1.0
COUNTING_S = 2.0
UNANSWERED_S = 30.0


class Questions:
    """The caller holds its lock around every call.

    Args:
        incarnation: random number of this process start.
        reply: this rank's control endpoint.
        send: passes a control message to a prefill rank; must not raise for an unreachable one.
        prefills: who the writers are.
    """

    def __init__(
        self,
        incarnation: int,
        reply: Endpoint,
        send: Callable[[Endpoint, Message], None],
        prefills: Prefills,
    ) -> None:
        self._incarnation = incarnation
        self._reply = reply
        self._send = send
        self._prefills = prefills
        self._asked_at = 0.0

    def ask_for_quiet(self, room: ReceivingRoom) -> None:
        """Also those who have ended are asked: if that was wrong, they answer."""
        room.asked_at = self._prefills.clock.seconds
        for writer in room.writers:
            if not writer.quiet:
                to = writer.prefill.endpoint
                self._send(to, Abort(self._incarnation, to, self._reply, *room.pull_name))

    def all_quiet(self, room: ReceivingRoom) -> bool:
        """Whether every writer of an aborted room has confirmed that, or cannot write any more."""
        for writer in room.writers:
            if writer.quiet:
                continue
            if not self._prefills.wrote_last(writer.prefill, room.aborted_at):
                return False
            writer.quiet = True
            if writer.prefill.lost is not Loss.DEAD:
                logger.error(
                    "Prefill rank %s has not confirmed that it writes no more for room %d, and nobody knows "
                    "that it has ended: after %.0f s its %d pages go to other requests. If it was frozen and "
                    "wakes up, it notices that and writes nothing old.",
                    writer.prefill.endpoint,
                    room.number,
                    self._prefills.clock.seconds - room.aborted_at,
                    room.pages,
                )
        return True

    def sweep(self, rooms: Iterable[ReceivingRoom]) -> None:
        """Asks what it is time to ask. Several times a second."""
        now = self._prefills.clock.seconds
        due: dict[Endpoint, list[PullName]] = defaultdict(list)
        asking = now - self._asked_at >= COUNTING_S  # of all rooms at once: few messages
        self._asked_at = now if asking else self._asked_at
        for room in rooms:
            if room.state is ReceiveState.QUARANTINED and now - room.asked_at >= ABORT_AGAIN_S:
                self.ask_for_quiet(room)
            elif asking and room.state is ReceiveState.COUNTING and now - room.pulled_at >= COUNTING_S:
                room.asked()
                for writer in room.writers:
                    due[writer.prefill.endpoint].append(room.pull_name)
        for prefill, pulls in due.items():
            self._ask_what_follows(prefill, pulls)

    def unanswered(self, room: ReceivingRoom) -> str | None:
        """Why the room cannot go on, when a writer takes our messages and has not answered one for long."""
        if self._prefills.clock.seconds - room.pulled_at < UNANSWERED_S:
            return None
        silent = [str(writer.prefill.endpoint) for writer in room.writers if writer.prefill.layout is None]
        return (
            f"prefill {', '.join(silent)} takes our messages, but its answer has not come for "
            f"{UNANSWERED_S:.0f} s: it must be able to connect to {self._reply}"
        )

    def introduce(self, room: ReceivingRoom) -> None:
        """Says Hello to the writers of a room that they gave up: they may not know us any more."""
        for writer in room.writers:
            self._send(writer.prefill.endpoint, self._prefills.hello(writer.prefill.endpoint))

    def _ask_what_follows(self, prefill: Endpoint, pulls: list[PullName]) -> None:
        """Also who it is, if the answer to our Hello was lost."""
        known = self._prefills.get(prefill)
        if known is not None and known.incarnation is None:
            self._send(prefill, self._prefills.hello(prefill))
        for first in range(0, len(pulls), MAX_ASKED):
            some = tuple(pulls[first : first + MAX_ASKED])
            self._send(prefill, Counting(self._incarnation, prefill, self._reply, some))
