"""The writing side: a prefill rank's view of its decode ranks and of the rooms that they pull.

Two threads call in. The control thread brings messages (``on_hello``, ``on_pull``) and runs ``sweep``; the
scheduler's thread sends and polls. A room's pages are handed to the engine under the same lock under
which it is failed, so once a room has failed and is quiet nothing of it can be posted any more.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from sglang_pd_fabric.fabric.engine import Engine, Region
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.transfer import PageList
from sglang_pd_fabric.messenger.decodes import Decodes
from sglang_pd_fabric.messenger.integrity import Gather, gather_host
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import NO_SLOT, Again, Endpoint, Failure, Hello, Message, Pull, Ready
from sglang_pd_fabric.messenger.posting import Poster
from sglang_pd_fabric.messenger.rooms import ROW, Handed, Room, Sent, Tombstones, disagreement
from sglang_pd_fabric.messenger.states import FirstToken, Held, SendState

logger = logging.getLogger(__name__)

Send = Callable[[Endpoint, Message], None]


class PrefillMessenger:
    """Serves the pulls of any number of decode ranks.

    Args:
        engine: writes for this rank.
        layout: this rank's layout record.
        kv: a region for each KV buffer, in the order of ``layout.page_bytes``.
        aux: a region for each metadata buffer, in the order of ``layout.aux_bytes``.
        send: passes a control message to a decode rank; must not raise for an unreachable one.
        same_host: ``auto`` (map a decode's memory where that is possible), ``map`` (refuse a decode whose
            memory cannot be mapped) or ``provider`` (never map).
        gather: reads their memory, where integrity is asked for.
    """

    def __init__(
        self,
        engine: Engine,
        layout: LayoutRecord,
        kv: Sequence[Region],
        aux: Sequence[Region],
        send: Send,
        same_host: str = "provider",
        gather: Gather = gather_host,
    ) -> None:
        kv_regions, aux_regions = [region.index for region in kv], [region.index for region in aux]
        self._decodes = Decodes(engine, layout, kv_regions, aux_regions, same_host)
        self._poster = Poster(engine, layout, self._decodes, send, (*kv, *aux), gather)
        self._send = send
        self._lock = threading.RLock()
        self._rooms: dict[int, Room] = {}
        self._draining: list[Room] = []
        self._tombstones = Tombstones()

    # -- control thread ------------------------------------------------------------------------------

    def on_hello(self, hello: Hello) -> None:
        """Takes a decode rank in, or refuses it, and answers."""
        with self._lock:
            self._drop_predecessors(hello)
            answer = self._decodes.meet(hello)
        self._send(hello.reply, answer)

    def on_ready(self, ready: Ready) -> list[int]:
        """A decode rank's NICs know ours. Returns the rooms that become READY or FAILED with that."""
        with self._lock:
            answer = self._decodes.admit(ready)
            known = self._decodes.get(ready.incarnation)
            if known is None:
                return []
            if answer is not None:
                self._send(known.reply, answer)
            waiting = [
                room
                for room in list(self._rooms.values())
                if room.state is SendState.ASKED and ready.incarnation in room.pulls
            ]
            for room in waiting:
                if known.refusal is not None:
                    self._fail(room, known.refusal)
                else:
                    self._advance(room)
            return [room.number for room in waiting if room.state is not SendState.ASKED]

    def on_pull(self, pull: Pull) -> SendState:
        """Takes a request for pages. READY: all its decode ranks have pulled and can be written to."""
        with self._lock:
            room = self._rooms.setdefault(pull.room, Room(pull.room))
            known = self._decodes.get(pull.incarnation)
            if known is None:
                logger.warning("Room %d was pulled by a decode that never said Hello; dropped", pull.room)
                return room.state
            if pull.incarnation in room.pulls:
                self._fail(room, f"bootstrap_room {pull.room} was used for two requests at a time")
            room.pulls[pull.incarnation] = pull
            if room.state is SendState.FAILED:
                self._notify(pull, room.reason or "the request has failed on prefill")
                return room.state
            buried = self._tombstones.get(pull.room)
            reason = known.refusal or (buried.reason if buried else None)
            if reason is not None:
                self._fail(room, reason)
            elif room.state is SendState.ASKED:
                self._advance(room)
            return room.state

    def on_again(self, again: Again) -> SendState:
        """Decode counts in a new slot: what was handed over goes once more, what is to come goes there."""
        with self._lock:
            room = self._rooms.get(again.room)
            pull = room.pulls.get(again.incarnation) if room else None
            if again.generation == NO_SLOT:
                return self._end_waiting(room, again.incarnation)
            if room is not None and room.state is SendState.DONE and not room.wrote(again.incarnation):
                return room.state
            if room is None or pull is None or room.state is SendState.DONE:
                known = self._decodes.get(again.incarnation)
                if known is not None:
                    reason = "prefill has given the pages back, they cannot be sent again"
                    self._send(known.reply, Failure(again.room, again.slot, again.generation, reason))
                return SendState.DONE
            pull = msgspec.structs.replace(pull, slot=again.slot, generation=again.generation)
            if room.state is SendState.FAILED:
                self._notify(pull, room.reason or "the request has failed on prefill")
                return room.state
            room.pulls[again.incarnation] = pull
            room.renew(again.incarnation)
            self._post_again(room)
            return room.state

    def lost(self, decode: Endpoint, loss: Loss) -> list[int]:
        """A decode rank is gone, or seems to be. Returns its rooms, which have failed."""
        with self._lock:
            gone = self._decodes.at(decode)
            rooms = [room.number for room in self._rooms.values() if gone & room.pulls.keys()]
            for incarnation in gone:
                self._drop(incarnation, f"lost decode {decode}: {loss.value}")
            return rooms

    def sweep(self) -> None:
        """Notices failed transfers of rooms that nobody polls, and lets go of what is over."""
        with self._lock:
            for room in list(self._rooms.values()):
                self._check_transfers(room)
            draining, self._draining = self._draining, []
            for room in draining:
                if room.quiet:
                    room.release()
                else:
                    self._draining.append(room)
            for incarnation in self._decodes.gone():
                self._drop(incarnation, "the decode that asked for it has ended")
            self._tombstones.expire()

    # -- scheduler's thread --------------------------------------------------------------------------

    def open(self, room: int) -> tuple[SendState, str | None]:
        """The scheduler has the request now. Returns how far decode has come with it."""
        with self._lock:
            known = self._rooms.setdefault(room, Room(room))
            known.opened = True
            buried = self._tombstones.pop(room)
            if buried is not None and buried.reason is not None and not buried.opened:
                self._fail(known, buried.reason)
            return known.state, known.reason

    def prefix_tokens(self, room: int) -> int:
        """Tokens of the prompt that decode already has."""
        with self._lock:
            known = self._rooms.get(room)
            return next((pull.prefix_tokens for pull in known.pulls.values()), 0) if known else 0

    def expect(self, room: int, pages: int, first_token: FirstToken = "prefill") -> None:
        """The scheduler will send so many pages, and the first token or not. Decode must see it alike."""
        with self._lock:
            known = self._rooms.get(room)
            if known and (differs := disagreement(known.pulls.values(), pages, first_token)):
                self._fail(known, differs)

    def handed_over(self, room: int) -> int:
        """How many pages of the room, from its first on, plans hold already."""
        with self._lock:
            known = self._rooms.get(room)
            return known.handed_over if known else 0

    def plan(self, room: int, src_pages: PageList, first: int, forward: int) -> bool:
        """Hands over pages that a forward pass is about to fill: each layer is posted when it is done.

        Args:
            src_pages: page ids, in the order of the prompt, shape ``[pages]``. Each is full when the forward
                pass has ended, or is the prompt's last.
            first: how many pages of the room lie before them.
            forward: number of the forward pass, as it will stand in the engine's progress word.

        Returns:
            Whether the room takes pages now. If not, ``send`` will have to do it after the forward pass.
        """
        return self._hand_over(room, src_pages, first, forward)

    def send(self, room: int, src_pages: PageList, first: int) -> None:
        """Hands over the room's pages [first, first + len(src_pages)), of every layer, all of them final.

        What ``plan`` has handed over is left out, so that a chunk is sent once, whoever is first.
        """
        self._hand_over(room, src_pages, first)

    def finish(self, room: int, aux_row: int) -> None:
        """Hands over the metadata row. Nothing follows it."""
        with self._lock:
            known = self._rooms.get(room)
            if known is None or known.state is not SendState.READY:
                return
            known.row_handed_over = True
            if self._hand(known, Handed(np.array([aux_row], np.uint32), ROW, 0)):
                known.go(SendState.FLUSHING)

    def forward_ended(self, room: int) -> None:
        """A forward pass with a chunk of the room is over: what was moved until now was hidden behind it."""
        with self._lock:
            known = self._rooms.get(room)
            if known is not None:
                known.hidden_bytes = known.bytes_moved

    def poll(self, room: int) -> tuple[SendState, str | None]:
        """The room's state, and why when it failed.

        A failed room still flushes as long as its pages are being read for an answer that decode could
        take for complete: who frees the pages of a failed room need not ask any further.
        """
        with self._lock:
            known = self._rooms.get(room)
            if known is None:
                return SendState.FAILED, f"room {room} is not open"
            quiet = known.quiet  # read before the errors: one that fails in between would look like done
            self._check_transfers(known)
            if known.state is SendState.FAILED and known.reading:
                return SendState.FLUSHING, None
            if known.state is SendState.FLUSHING and quiet and not known.waiting:
                known.go(SendState.DONE)
            return known.state, known.reason

    def sent(self, room: int) -> Sent:
        """What of the room's writes has ended well, and how long something of it was on its way."""
        with self._lock:
            known = self._rooms.get(room)
            return known.sent() if known else Sent()

    # -- either thread -------------------------------------------------------------------------------

    def fail(self, room: int, reason: str) -> None:
        """Nothing more of the room is posted; its decode ranks are told why."""
        with self._lock:
            known = self._rooms.get(room)
            if known is not None:
                self._fail(known, reason)
            elif self._tombstones.get(room) is None:
                self._tombstones.add(room, reason, opened=False)

    def quiet(self, room: int) -> bool:
        """Whether no write of the room is waiting or on a wire, and none can start any more."""
        with self._lock:
            known = self._rooms.get(room)
            if known is not None and known.state not in (SendState.FAILED, SendState.DONE):
                return False
            others = [draining for draining in self._draining if draining.number == room]
            return all(each.quiet for each in (*others, *([known] if known else [])))

    def reading(self, room: int) -> bool:
        """Whether pages of the room are still to be read, or being read, for an answer that may succeed.

        Once one has failed without its metadata row, decode cannot take it for complete: no matter then.
        """
        with self._lock:
            known = self._rooms.get(room)
            return known is not None and known.reading

    def close(self, room: int) -> None:
        """The scheduler is done with the room."""
        with self._lock:
            known = self._rooms.pop(room, None)
            if known is None:
                return
            known.opened = True
            self._fail(known, "the request has ended on prefill")
            self._tombstones.add(room, known.reason, opened=True)
            if known.quiet:
                known.release()
            else:
                self._draining.append(known)

    def held(self) -> Held:
        """What is in use now."""
        return Held(len(self._rooms) + len(self._draining), len(self._decodes))

    # -- inside, under the lock ----------------------------------------------------------------------

    def _drop_predecessors(self, hello: Hello) -> None:
        for incarnation in self._decodes.predecessors(hello):
            self._drop(incarnation, "the decode that asked for it was restarted")

    def _drop(self, incarnation: int, reason: str) -> None:
        for room in list(self._rooms.values()):
            if incarnation in room.pulls:
                self._fail(room, reason)
        self._decodes.forget(incarnation)

    def _advance(self, room: Room) -> None:
        pulls = room.pulls.values()
        if all(len(pulls) == pull.writers and self._decodes.serves(pull.incarnation) for pull in pulls):
            room.go(SendState.READY)

    def _hand_over(self, room: int, src_pages: PageList, first: int, forward: int = 0) -> bool:
        """Each page of a room passes here once: ``handed_over`` only grows, and no page is left out."""
        with self._lock:
            known = self._rooms.get(room)
            if known is None or known.state is not SendState.READY:
                return False
            if first > known.handed_over and len(src_pages):
                self._fail(
                    known, f"page {first} follows page {known.handed_over}: the pages between are lost"
                )
                return False
            fresh = src_pages[known.handed_over - first :]
            if len(fresh):
                first, known.handed_over = known.handed_over, known.handed_over + len(fresh)
                return self._hand(known, Handed(np.array(fresh), first, forward))
            return True

    def _hand(self, room: Room, handed: Handed) -> bool:
        """Posts it for every decode rank of the room. False: the room has failed with that."""
        room.handed.append(handed)
        try:
            for incarnation in room.pulls:
                self._poster.post(room, incarnation, handed)
        except FabricError as error:
            self._fail(room, str(error))
            return False
        return True

    def _check_transfers(self, room: Room) -> None:
        if room.state in (SendState.DONE, SendState.FAILED):
            return
        for incarnation, transfer in list(room.transfers.items()):
            status = transfer.status()
            if status.retry and self._poster.ask_again(room, incarnation):
                continue
            if status.error:
                way = self._decodes[incarnation].way
                reason = os.strerror(-status.error)
                self._fail(room, f"writing to decode failed: {reason}{f' ({way})' * bool(way)}")
                if -status.error == errno.ETIMEDOUT:
                    self._decodes.reconnect(incarnation)
                return
        self._post_again(room)

    def _post_again(self, room: Room) -> None:
        try:
            self._poster.post_again(room)
        except FabricError as error:
            self._fail(room, str(error))

    def _end_waiting(self, room: Room | None, incarnation: int) -> SendState:
        """Decode needs nothing more: it was complete before it heard of the broken path, or has given up."""
        if room is None:
            return SendState.DONE
        room.waiting.pop(incarnation, None)
        room.renewed.discard(incarnation)
        if room.state is SendState.READY:
            self._fail(room, "decode has ended the request")
        return room.state

    def _fail(self, room: Room, reason: str) -> None:
        if room.state in (SendState.DONE, SendState.FAILED):
            return
        room.go(SendState.FAILED)
        room.reason = reason
        for transfer in room.transfers.values():
            transfer.cancel()
        for pull in room.pulls.values():
            self._notify(pull, reason)
        if not room.opened:
            del self._rooms[room.number]
            self._tombstones.add(room.number, reason, opened=False)

    def _notify(self, pull: Pull, reason: str) -> None:
        known = self._decodes.get(pull.incarnation)
        if known is not None:
            self._send(known.reply, Failure(pull.room, pull.slot, pull.generation, reason[:4096]))
