"""The writing side: a prefill rank's view of its decode ranks and of the rooms that they pull.

Three threads call in. The control thread brings messages (``on_hello``, ``on_pull``) and runs ``sweep``; the
scheduler's thread sends and polls; whoever watches the peers calls ``lost``. A room's pages are handed to the
engine under the same lock under which it is failed, so once a room has failed and is quiet nothing of it can
be posted any more.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from sglang_pd_fabric.fabric.engine import Engine, Region
from sglang_pd_fabric.fabric.transfer import PageList
from sglang_pd_fabric.messenger.aborts import Aborts
from sglang_pd_fabric.messenger.decodes import Decodes
from sglang_pd_fabric.messenger.integrity import Gather, gather_host
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import (
    NO_SLOT,
    Abort,
    Again,
    Counting,
    Endpoint,
    Hello,
    Message,
    Pull,
    Ready,
)
from sglang_pd_fabric.messenger.posting import Poster
from sglang_pd_fabric.messenger.rooms import ROW, Handed, PullId, Sent, disagreement
from sglang_pd_fabric.messenger.sending import SendingRooms
from sglang_pd_fabric.messenger.states import FirstToken, Held, RoomInUseError, SendState

logger = logging.getLogger(__name__)

ABORTED = "aborted by decode"


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
        send: Callable[[Endpoint, Message], None],
        same_host: str = "provider",
        gather: Gather = gather_host,
    ) -> None:
        self.incarnation = incarnation = secrets.randbits(64)
        kv_regions, aux_regions = [region.index for region in kv], [region.index for region in aux]
        self._decodes = Decodes(engine, layout, kv_regions, aux_regions, same_host, incarnation)
        poster = Poster(engine, layout, self._decodes, send, incarnation, (*kv, *aux), gather)
        self._rooms = SendingRooms(engine, self._decodes, poster, incarnation, send)
        self._aborts = Aborts(incarnation, send)
        self._send = send
        self._lock = threading.RLock()

    # -- control thread ------------------------------------------------------------------------------

    def on_hello(self, hello: Hello) -> None:
        """Takes a decode rank in, or refuses it, and answers."""
        with self._lock:
            for incarnation in self._decodes.at(hello.reply):
                if incarnation != hello.incarnation:  # the place belongs to one process at a time
                    self._rooms.drop(incarnation, "the decode that asked for it was restarted")
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
            waiting = self._rooms.asked_by(ready.incarnation)
            for room in waiting:
                if known.refusal is not None:
                    self._rooms.fail(room, known.refusal)
                else:
                    self._rooms.advance(room)
            return [room.number for room in waiting if room.state is not SendState.ASKED]

    def on_pull(self, pull: Pull) -> SendState:
        """Takes a request for pages. READY: all its decode ranks have pulled and can be written to."""
        with self._lock:
            self._rooms.notice_standstill()
            if self._decodes.get(pull.incarnation) is None:
                logger.warning("Room %d was pulled by a decode that never said Hello; dropped", pull.room)
                return self._rooms.state(pull.room)
            answer = self._decodes.hear(pull.incarnation)
            known = self._decodes[pull.incarnation]
            if answer is not None:
                self._send(known.reply, answer)
            if self._rooms.pulled_by(PullId.of(pull)) is not None:
                return self._rooms.state(pull.room)  # it came twice
            room = self._rooms.of(pull.room)
            if pull.incarnation in room.pulls or room.complete_pulls:
                if room.opened:  # its own decode ranks are done with it, and ask for the next request already
                    if self._aborts.overtook(pull):
                        room.fail_next(ABORTED, opened=False)
                    else:
                        room.later[pull.incarnation] = pull
                    return room.state
                self._rooms.fail(room, "its decode has gone on to another request")
                self._rooms.tombstones.pop(pull.room)
                room = self._rooms.of(pull.room)
            room.take(pull)
            if self._aborts.overtook(pull):
                self._rooms.fail(room, ABORTED)
            if room.state is SendState.FAILED:
                reason = room.reason or "the request has failed on prefill"
                self._rooms.tombstones.explain([PullId.of(pull)], reason)
                self._rooms.tell(pull, reason)
                return room.state
            buried = self._rooms.tombstones.of(pull)
            if buried is not None:
                self._rooms.fail(room, buried.reason)
                self._rooms.tombstones.add(
                    pull.room, buried.reason, opened=buried.opened, pulled=buried.pulled | {pull.incarnation}
                )
            elif known.refusal is not None:
                self._rooms.fail(room, known.refusal)
            elif room.state is SendState.ASKED:
                self._rooms.advance(room)
            return room.state

    def on_abort(self, abort: Abort) -> SendState | None:
        """Decode waits no more for a pull: it is told when nothing of it can be written any more.

        Returns:
            What that made of the room with that number; None: it does not concern the room.
        """
        with self._lock:
            name, room = PullId.of(abort), self._rooms.get(abort.room)
            pulled = self._rooms.pulled_by(name)
            if pulled is not None:
                self._rooms.fail(pulled, ABORTED)
            elif room is not None and self._rooms.waits(name):
                del room.later[abort.incarnation]
                room.fail_next(ABORTED, opened=False)
            else:
                self._aborts.came_first(name)
            self._aborts.wait(abort)
            self._aborts.answer(self._rooms.over)
            return room.state if room is not None and room is pulled else None

    def on_again(self, again: Again) -> SendState:
        """Decode counts in a new slot: what was handed over goes once more, what is to come goes there."""
        with self._lock:
            self._rooms.notice_standstill()
            room = self._rooms.get(again.room)
            pull = room.pulls.get(again.incarnation) if room else None
            if pull is not None and (pull.slot, pull.generation) != (again.old_slot, again.old_generation):
                room = pull = None  # the request that it means has ended
            if again.generation == NO_SLOT:
                return self._rooms.end_waiting(room, again.incarnation)
            if room is not None and room.state is SendState.DONE and not room.wrote(again.incarnation):
                return room.state
            if room is None or pull is None or room.state is SendState.DONE:
                self._rooms.tell(again, "prefill has given the pages back, they cannot be sent again")
                return SendState.DONE
            pull = msgspec.structs.replace(pull, slot=again.slot, generation=again.generation)
            if room.state is SendState.FAILED:
                self._rooms.tell(pull, room.reason or "the request has failed on prefill")
                return room.state
            room.pulls[again.incarnation] = pull
            room.renew(again.incarnation)
            self._rooms.post_again(room)
            return room.state

    def on_counting(self, counting: Counting) -> None:
        """Decode still waits for these pulls."""
        with self._lock:
            self._rooms.answer(counting)

    def sweep(self) -> list[int]:
        """See ``SendingRooms.sweep``."""
        with self._lock:
            ready = self._rooms.sweep()
            self._aborts.answer(self._rooms.over)
            return ready

    # -- any thread ----------------------------------------------------------------------------------

    def lost(self, endpoint: Endpoint, how: Loss) -> list[int]:
        """A decode rank is lost: nothing more is written to it. Returns the rooms that it asked for."""
        with self._lock:
            gone = self._decodes.at(endpoint)
            rooms = [room.number for room in self._rooms.all() if room.pulls.keys() & set(gone)]
            for incarnation in gone:
                reason = f"lost decode {endpoint}: {how.value}"
                if how is Loss.DEAD:
                    self._rooms.drop(incarnation, reason)
                else:
                    self._rooms.fail_rooms_of(incarnation, reason)
                    self._decodes.keep_silent(incarnation)
            return rooms

    def held(self) -> Held:
        """What is in use now."""
        with self._lock:
            return Held(len(self._rooms), len(self._decodes))

    # -- scheduler's thread --------------------------------------------------------------------------

    def open(self, room: int) -> tuple[SendState, str | None]:
        """The scheduler has the request now. Returns how far decode has come with it.

        Raises:
            RoomInUseError: it has another one with that number already. As long as nobody can tell which of
                them decode has pulled, that one fails too: pages of one must not answer the other.
        """
        with self._lock:
            known = self._rooms.of(room)
            if known.opened:
                error = RoomInUseError(room, "prefill")
                known.next_fails, known.next_opened = str(error), True
                if known.state in (SendState.ASKED, SendState.READY):
                    self._rooms.fail(known, str(error))
                raise error
            known.opened = True
            buried = self._rooms.tombstones.pop(room)
            if buried is not None and not buried.opened:
                self._rooms.fail(known, buried.reason)
            return known.state, known.reason

    def prefix_tokens(self, room: int) -> int:
        """Tokens of the prompt that decode already has."""
        with self._lock:
            known = self._rooms.get(room)
            return next((pull.prefix_tokens for pull in known.pulls.values()), 0) if known else 0

    def expect(self, room: int, pages: int, prompt: int = 0, first_token: FirstToken = "prefill") -> None:
        """The scheduler will send so many pages of this prompt. Fails the room if decode asked for others."""
        with self._lock:
            known = self._rooms.get(room)
            if known is None:
                return
            for pull in known.pulls.values():
                if (differs := disagreement(pull, pages, prompt, first_token)) is not None:
                    self._rooms.fail(known, differs)

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
            self._rooms.notice_standstill()
            known = self._rooms.get(room)
            if known is None or known.state is not SendState.READY:
                return
            known.row_handed_over, known.finished = True, time.monotonic()
            if self._rooms.hand(known, Handed(np.array([aux_row], np.uint32), ROW, 0)):
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
            quiet = known.quiet and not known.waiting  # before errors are read and more is posted
            self._rooms.check_transfers(known)
            if known.state is SendState.FAILED and known.reading:
                return SendState.FLUSHING, None
            if known.state is SendState.FLUSHING and quiet and not known.waiting:
                known.go(SendState.DONE)
            return known.state, known.reason

    def sent(self, room: int) -> Sent:
        """What of the room's writes has ended well, and how long something of it was on its way."""
        with self._lock:
            known = self._rooms.get(room)
            return known.sent(self._decodes.host, self._decodes.mapped) if known else Sent()

    # -- either thread -------------------------------------------------------------------------------

    def fail(self, room: int, reason: str) -> None:
        """Nothing more of the room is posted; its decode ranks are told why."""
        with self._lock:
            known = self._rooms.get(room)
            if known is not None:
                self._rooms.fail(known, reason)

    def refuse(self, room: int, reason: str) -> None:
        """Decode will not pull the room. If our scheduler has yet to hear of it, it fails when it comes."""
        with self._lock:
            known = self._rooms.get(room)
            if known is not None:
                self._rooms.fail(known, reason)
            else:
                self._rooms.tombstones.add(room, reason, opened=False)

    def reading(self, room: int) -> bool:
        """Whether pages of the room are still to be read, or being read, for an answer that may succeed.

        Once a room has failed without its metadata row, decode cannot take it for complete any more: then
        it does not matter what the writes read that are still on their way.
        """
        with self._lock:
            known = self._rooms.get(room)
            return known is not None and known.reading

    def reason(self, room: int) -> str | None:
        """Why the room has failed here, if it has."""
        with self._lock:
            return self._rooms.reason(room)

    def close(self, room: int) -> None:
        """The scheduler is done with the room."""
        with self._lock:
            known = self._rooms.get(room)
            if known is None:
                return
            known.opened = True
            self._rooms.fail(known, "the request has ended on prefill")
            for pull in self._rooms.leave(known):
                self.on_pull(pull)

    # -- inside, under the lock ----------------------------------------------------------------------

    def _hand_over(self, room: int, src_pages: PageList, first: int, forward: int = 0) -> bool:
        """Each page of a room passes here once: ``handed_over`` only grows, and no page is left out."""
        with self._lock:
            self._rooms.notice_standstill()
            known = self._rooms.get(room)
            if known is None or known.state is not SendState.READY:
                return False
            if first > known.handed_over and len(src_pages):
                self._rooms.fail(
                    known, f"page {first} follows page {known.handed_over}: the pages between are lost"
                )
                return False
            fresh = src_pages[known.handed_over - first :]
            if len(fresh):
                first, known.handed_over = known.handed_over, known.handed_over + len(fresh)
                return self._rooms.hand(known, Handed(np.array(fresh), first, forward))
            return True
