"""The rooms of a prefill rank: what makes them ready, what ends them, and who is told."""

import errno
import os
import time
from collections.abc import Callable

from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.messenger.decodes import Decodes
from sglang_pd_fabric.messenger.messages import (
    MAX_REASON,
    Again,
    Counting,
    Ended,
    Endpoint,
    Failure,
    Message,
    Over,
    Pull,
)
from sglang_pd_fabric.messenger.posting import Poster
from sglang_pd_fabric.messenger.rooms import Handed, PullId, Room, Tombstones
from sglang_pd_fabric.messenger.states import SendState

# Seconds after a standstill in which nothing new is written: a pull that was sent before it may come first,
# and behind it the word that it was aborted, long ago for decode.
SETTLE_S = 1.0
NOT_WRITTEN = "writing to decode failed: "


class SendingRooms:
    """By number, and those that the scheduler has left while writes of them were on a wire.

    The caller holds its lock around every call.

    Args:
        engine: writes for this rank.
        decodes: whom it may write to.
        poster: posts for it.
        incarnation: random number of this process start.
        send: passes a control message to a decode rank.
    """

    def __init__(
        self,
        engine: Engine,
        decodes: Decodes,
        poster: Poster,
        incarnation: int,
        send: Callable[[Endpoint, Message], None],
    ) -> None:
        self._engine = engine
        self._decodes = decodes
        self._poster = poster
        self._incarnation = incarnation
        self._send = send
        self._rooms: dict[int, Room] = {}
        self._draining: dict[PullId, Room] = {}  # that the scheduler has left
        self._awake: float | None = None  # when ``sweep`` ran last
        self._settled = 0.0  # until then what was sent to us before we stood still may still come
        self.tombstones = Tombstones()

    def get(self, number: int) -> Room | None:
        """The room with that number that the scheduler or a decode rank still has."""
        return self._rooms.get(number)

    def of(self, number: int) -> Room:
        """The same; a new one, if there is none."""
        return self._rooms.setdefault(number, Room(number))

    def state(self, number: int) -> SendState:
        """Its state; ASKED, if there is none."""
        room = self._rooms.get(number)
        return SendState.ASKED if room is None else room.state

    def asked_by(self, incarnation: int) -> list[Room]:
        """Rooms that a decode rank has pulled and that wait, perhaps for it alone."""
        rooms = self._rooms.values()
        return [room for room in rooms if room.state is SendState.ASKED and incarnation in room.pulls]

    def all(self) -> list[Room]:
        """Those that the scheduler or a decode rank still has."""
        return list(self._rooms.values())

    def __len__(self) -> int:
        return len(self._rooms) + len(set(self._draining.values()))

    def reason(self, number: int) -> str | None:
        """Why the room has failed, if it has."""
        known = self._rooms.get(number) or self.tombstones.get(number)
        return known.reason if known else None

    def over(self, pull: PullId) -> bool:
        """Whether no write of the pull is waiting or on a wire, and none can start any more."""
        room = self.pulled_by(pull)
        return room is None or room.over

    def pulled_by(self, pull: PullId) -> Room | None:
        """The room of the pull, if there still is one and it does not wait for the next with its number."""
        present = self._rooms.get(pull.room)
        return present if present is not None and present.pulled_as(pull) else self._draining.get(pull)

    def waits(self, pull: PullId) -> bool:
        """Whether the pull is of the next request with that number."""
        present = self._rooms.get(pull.room)
        later = present.later.get(pull.incarnation) if present is not None else None
        return later is not None and PullId.of(later) == pull

    def answer(self, counting: Counting) -> None:
        """Tells a decode rank for which of its pulls nothing more will be written, and how they failed."""
        ended: list[Ended] = []
        for name in counting.pulls:
            pull = PullId(name.room, counting.incarnation, name.slot, name.generation)
            why = self.tombstones.why(pull)
            if why is not None or (self.over(pull) and not self.waits(pull)):
                ended.append(Ended(*name, (why or "")[:MAX_REASON]))
        if ended:
            self._send(counting.reply, Over(counting.prefill, self._incarnation, tuple(ended)))

    def advance(self, room: Room) -> None:
        """READY, once all its decode ranks have pulled and can be written to."""
        if time.monotonic() < self._settled:
            return
        pulls = room.pulls.values()
        if all(len(pulls) == pull.writers and self._decodes.serves(pull.incarnation) for pull in pulls):
            room.go(SendState.READY)

    def hand(self, room: Room, handed: Handed) -> bool:
        """Posts it for every decode rank of the room. False: the room has failed with that."""
        room.handed.append(handed)
        try:
            for incarnation in room.pulls:
                self._poster.post(room, incarnation, handed)
        except FabricError as error:
            self.fail(room, f"{NOT_WRITTEN}{error}")
            return False
        return True

    def check_transfers(self, room: Room) -> None:
        """Fails the room, or has it sent again, when a write of it has failed."""
        if room.state in (SendState.DONE, SendState.FAILED):
            return
        for incarnation, transfer in list(room.transfers.items()):
            status = transfer.status()
            if status.retry and self._poster.ask_again(room, incarnation):
                continue
            if status.error:
                way = self._decodes[incarnation].way
                reason = os.strerror(-status.error)
                self.fail(room, f"{NOT_WRITTEN}{reason}{f' ({way})' * bool(way)}")
                if -status.error in (errno.ETIMEDOUT, errno.ESHUTDOWN):  # the engine gave it up
                    self._decodes.reconnect(incarnation, transfer.peer)
                return
        self.post_again(room)

    def _end_stuck(self, room: Room) -> None:
        """What a failed room still has on a wire has as long as any transfer; its connection ends then."""
        if room.state is not SendState.FAILED or time.monotonic() - room.failed <= self._engine.stall:
            return
        for incarnation, transfer in room.unfinished():
            self._decodes.reconnect(incarnation, transfer.peer)

    def post_again(self, room: Room) -> None:
        """Posts what has a new slot to go to."""
        try:
            self._poster.post_again(room)
        except FabricError as error:
            self.fail(room, f"{NOT_WRITTEN}{error}")

    def end_waiting(self, room: Room | None, incarnation: int) -> SendState:
        """Decode needs nothing more: it was complete before it heard of the broken path, or has given up."""
        if room is None:
            return SendState.DONE
        room.waiting.pop(incarnation, None)
        room.renewed.discard(incarnation)
        if room.state is SendState.READY:
            self.fail(room, "decode has ended the request")
        return room.state

    def fail(self, room: Room, reason: str) -> None:
        """Nothing more of the room is posted; its decode ranks are told why. The first reason stays."""
        if room.state in (SendState.DONE, SendState.FAILED):
            return
        room.go(SendState.FAILED)
        room.reason, room.failed = reason, time.monotonic()
        self.tombstones.explain(room.names.values(), reason)
        for transfer in room.transfers.values():
            transfer.cancel()
        for pull in room.pulls.values():
            self.tell(pull, reason)
        if not room.opened:
            del self._rooms[room.number]
            self.tombstones.add(room.number, reason, opened=False, pulled=room.names)

    def fail_rooms_of(self, incarnation: int, reason: str) -> None:
        """A decode rank needs nothing of what it asked for."""
        for room in self.all():
            if incarnation in room.pulls:
                self.fail(room, reason)
            room.later.pop(incarnation, None)

    def drop(self, incarnation: int, reason: str) -> None:
        """A decode rank has ended."""
        self.fail_rooms_of(incarnation, reason)
        self._decodes.forget(incarnation)

    def leave(self, room: Room) -> list[Pull]:
        """The scheduler is done with it. Returns pulls that came for the next request with its number."""
        del self._rooms[room.number]
        if room.quiet:
            room.release()
        else:
            self._draining.update(dict.fromkeys(room.names.values(), room))
        if room.next_fails is not None:
            self.tombstones.add(room.number, room.next_fails, opened=room.next_opened)
        elif room.reason is not None and not room.complete_pulls:
            self.tombstones.add(room.number, room.reason, opened=True, pulled=room.names)
        return list(room.later.values())

    def sweep(self) -> list[int]:
        """Notices failed transfers of rooms that nobody polls, and lets go of what is over.

        Returns:
            Rooms that have become READY with that.
        """
        self.notice_standstill()
        self._awake = time.monotonic()
        for room in self.all():
            self.check_transfers(room)
            self._end_stuck(room)
        for room in set(self._draining.values()):
            if room.quiet:
                room.release()
                for name in room.names.values():
                    self._draining.pop(name, None)
            else:
                self._end_stuck(room)
        for incarnation in self._decodes.gone():
            self.drop(incarnation, "the decode that asked for it has ended")
        if not self._settled or self._awake < self._settled:
            return []
        self._settled = 0.0
        asked = [room for room in self.all() if room.state is SendState.ASKED and room.pulls]
        for room in asked:
            self.advance(room)
        return [room.number for room in asked if room.state is SendState.READY]

    def notice_standstill(self) -> None:
        """Whoever waits for us has given up when this process stood still for long: nothing old is posted."""
        if self._awake is None or time.monotonic() - self._awake <= self._engine.stall:
            return
        still = time.monotonic() - self._awake
        self._awake = time.monotonic()
        self._settled = self._awake + SETTLE_S
        for room in self.all():
            room.later.clear()
            room.stale = bool(room.pulls)
            if room.pulls and not (room.state is SendState.FLUSHING and room.quiet):
                self.fail(room, f"prefill stood still for {still:.0f} s")
        self._decodes.all_keep_silent()

    def tell(self, asked: Pull | Again, reason: str) -> None:
        """Tells a decode rank why what it asked for will not come."""
        decode = self._decodes.get(asked.incarnation)
        if decode is not None:
            place = self._incarnation, asked.room, asked.slot, asked.generation
            self._send(decode.reply, Failure(decode.hello.prefill, *place, reason[:MAX_REASON]))
