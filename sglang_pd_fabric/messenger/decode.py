"""The counting side: a decode rank's view of the rooms that it waits for.

Nobody tells decode that a request is complete: its engine counts units per slot, and the scheduler's poll
compares the count with what the prefill's layout says will come. Messages bring a layout (once) and bad news.

A room that fails is aborted: its writers are told, and until each has said that it writes no more, or has
ended, slot and pages belong to the room (``released``). The control thread calls ``on_*`` and ``sweep``, the
scheduler's thread the others, and whoever watches the peers ``lost``: hence the lock.
"""

import logging
import math
import threading
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from sglang_pd_fabric.fabric.engine import Engine, Region
from sglang_pd_fabric.messenger.integrity import Gather, Verifier, gather_host
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.liveness import HOLD_S
from sglang_pd_fabric.messenger.messages import (
    NO_SLOT,
    Again,
    Digest,
    Endpoint,
    Failure,
    Hello,
    Message,
    Over,
    Pull,
    Quiet,
    Ready,
    Refusal,
    RemoteRegion,
    Shared,
    Spoiled,
    Welcome,
)
from sglang_pd_fabric.messenger.prefills import Ourselves, Prefill, Prefills
from sglang_pd_fabric.messenger.questions import Questions
from sglang_pd_fabric.messenger.receiving import GIVEN_UP, RESTARTED, STOOD_STILL, ReceivingRoom, Writer
from sglang_pd_fabric.messenger.sharding import expected_units
from sglang_pd_fabric.messenger.slots import NoFreeSlotError, Slot, SlotTable
from sglang_pd_fabric.messenger.states import (
    FirstToken,
    Held,
    PrefillGoneError,
    ReceiveState,
    RoomInUseError,
)

logger = logging.getLogger(__name__)


class DecodeMessenger:
    """Receives from any number of prefill ranks.

    Args:
        engine: counts for this rank.
        layout: this rank's layout record.
        kv: a region for each KV buffer.
        aux: a region for each metadata buffer.
        incarnation: random number of this process start.
        reply: this rank's control endpoint.
        send: passes a control message to a prefill rank; must not raise for an unreachable one.
        shared: the same memory for prefill ranks on this host, when it can be mapped.
        gather: reads their memory, where integrity is asked for.
        hold_s: seconds for which pages are held back from their next owner when a writer neither confirms nor
            is known to have ended.
    """

    def __init__(
        self,
        engine: Engine,
        layout: LayoutRecord,
        kv: Sequence[Region],
        aux: Sequence[Region],
        incarnation: int,
        reply: Endpoint,
        send: Callable[[Endpoint, Message], None],
        shared: Shared | None = None,
        gather: Gather = gather_host,
        hold_s: float = HOLD_S,
    ) -> None:
        self._engine = engine
        self._layout = layout
        self._incarnation = incarnation
        self._send = send
        ourselves = Ourselves(
            incarnation,
            reply,
            layout,
            tuple(RemoteRegion(r.base, r.nbytes, r.keys) for r in kv),
            tuple(RemoteRegion(r.base, r.nbytes, r.keys) for r in aux),
            shared,
        )
        self._prefills = Prefills(engine, ourselves, hold_s)
        self._questions = Questions(incarnation, reply, send, self._prefills)
        self._verifier = Verifier(layout, (*kv, *aux), incarnation, gather) if layout.integrity else None
        self._slots = SlotTable(engine)
        self._nics_removed = engine.nics_removed
        self._rooms: dict[int, ReceivingRoom] = {}
        self._lock = threading.RLock()

    # -- scheduler's thread --------------------------------------------------------------------------

    def hello(self, prefill: Endpoint) -> Hello:
        """The introduction to send to a prefill rank before the first pull."""
        with self._lock:
            return self._prefills.hello(prefill)

    def pull(
        self,
        room: int,
        writers: Sequence[Endpoint],
        pages: npt.NDArray[np.int32],
        aux_row: int,
        prefix_tokens: int,
        decode_ranks: int,
        prompt: int = 0,
        first_token: FirstToken = "prefill",
        *,
        later: bool = False,
    ) -> Pull:
        """Arms a slot for the room. The message goes to every writer.

        Args:
            writers: the prefill ranks that will write.
            pages: destination page ids, shape ``[pages]``.
            aux_row: destination row of the metadata buffers.
            prefix_tokens: tokens that need no transfer.
            decode_ranks: decode ranks that pull this room from each writer.
            prompt, first_token: see ``Pull``.
            later: the message does not go at once; see ``leaving``.

        Raises:
            RoomInUseError: a live request has this room number, or pages of an earlier one are still held.
            NoFreeSlotError: more requests are in flight than there are slots.
            PrefillGoneError: a writer was lost, or we never said Hello to it.
        """
        with self._lock:
            known = self._rooms.get(room)
            if known is not None:
                raise RoomInUseError(room, "decode", held=known.state is ReceiveState.QUARANTINED)
            writing: list[Writer] = []
            for writer in writers:
                prefill = self._prefills.get(writer)
                if prefill is None:
                    raise PrefillGoneError(f"prefill rank {writer} is gone")
                writing.append(Writer(prefill))
            slot = self._slots.take()
            since = self._engine.standstills, math.inf if later else self._prefills.clock.seconds
            self._rooms[room] = ReceivingRoom(room, slot, slot, writing, len(pages), *since)
            if self._verifier is not None:
                self._verifier.begin(room, pages, aux_row)
        return Pull(
            self._incarnation,
            room,
            slot.index,
            slot.generation,
            np.ascontiguousarray(pages, "<u4").tobytes(),
            aux_row,
            prefix_tokens,
            decode_ranks,
            prompt,
            first_token,
        )

    def leaving(self, pull: Pull) -> Pull:
        """What to send of a pull that waited: without its pages, if these may be another request's by now."""
        with self._lock:
            known = self._rooms.get(pull.room)
            if known and known.first_slot == Slot(pull.slot, pull.generation) and not self._released(known):
                known.pulled_at = self._prefills.clock.seconds
                return pull
        return msgspec.structs.replace(pull, pages=b"")

    def poll(self, room: int) -> tuple[ReceiveState, str | None]:
        """COUNTING, COMPLETE or FAILED with the reason. Reads one counter."""
        with self._lock:
            known = self._rooms.get(room)
            if known is None:
                return ReceiveState.COUNTING, None
            if known.state is ReceiveState.COUNTING:
                self._notice_lost_nics()
                self._advance(known)
            return known.state, known.failure

    def abort(self, room: int, reason: str) -> None:
        """Ends a room that is not complete. Its writers are told; nothing that comes now counts."""
        with self._lock:
            known = self._rooms.get(room)
            if known is not None and known.state is ReceiveState.COUNTING:
                known.fail(reason)
            if known is not None and known.state is ReceiveState.FAILED:
                self._slots.quarantine(known.slot)
                known.go(ReceiveState.QUARANTINED)
                known.aborted_at = self._prefills.clock.seconds
                self._questions.ask_for_quiet(known)

    def released(self, room: int) -> bool:
        """Whether no writer can write into the room's pages any more: they may have another owner."""
        with self._lock:
            known = self._rooms.get(room)
            return known is None or self._released(known)

    def close(self, room: int) -> None:
        """The scheduler is done with the room. Its slot is free as soon as the room is released."""
        with self._lock:
            known = self._rooms.get(room)
            if known is None:
                return
            self.abort(room, "closed before it was complete")
            known.closed = True
            self._let_go(known)

    # -- control thread ------------------------------------------------------------------------------

    def on_welcome(self, welcome: Welcome) -> Ready | None:
        """Learns what a prefill's layout is. Returns what to answer, where the provider wants that."""
        with self._lock:
            answer, predecessor = self._prefills.on_welcome(welcome)
            self._fail_rooms_of(predecessor, RESTARTED)
            return answer

    def on_refusal(self, refusal: Refusal) -> None:
        """Learns that a prefill does not serve us; the rooms pulled from it fail with the reason."""
        with self._lock:
            self._fail_rooms_of(self._prefills.on_refusal(refusal), RESTARTED)

    def on_failure(self, failure: Failure) -> None:
        """Bad news about one request; of an earlier owner of the room or slot it is ignored."""
        with self._lock:
            known = self._rooms.get(failure.room)
            if known is None or known.slot != Slot(failure.slot, failure.generation):
                return
            if known.writer(failure.prefill, failure.incarnation) is not None:
                known.failure = known.failure or failure.reason

    def on_spoiled(self, spoiled: Spoiled) -> None:
        """The count of a slot cannot be trusted any more; of an earlier slot of the room it is old news."""
        with self._lock:
            known = self._rooms.get(spoiled.room)
            if known is None or known.state is ReceiveState.COMPLETE:
                old = spoiled.slot, spoiled.generation
                self._send(spoiled.prefill, Again(self._incarnation, spoiled.room, *old, 0, NO_SLOT))
            elif known.slot == Slot(spoiled.slot, spoiled.generation):
                known.spoiled |= known.writer(spoiled.prefill, spoiled.incarnation) is not None

    def on_quiet(self, quiet: Quiet) -> None:
        """A writer has nothing of an aborted pull on its way any more; of an earlier pull it is old news."""
        with self._lock:
            known = self._rooms.get(quiet.room)
            if known is None or known.first_slot != Slot(quiet.slot, quiet.generation):
                return
            writer = known.writer(quiet.prefill, quiet.incarnation)
            if writer is not None and known.state is ReceiveState.QUARANTINED:
                writer.quiet = True
                self._let_go(known)

    def on_over(self, over: Over) -> None:
        """A writer has nothing left to write for these pulls; of an earlier pull of a room it is old news."""
        with self._lock:
            for *name, reason in over.pulls:
                known = self._rooms.get(name[0])
                if known is None or known.pull_name != tuple(name):
                    continue
                writer = known.writer(over.prefill, over.incarnation)
                if writer is not None:
                    writer.over = True
                    known.failure = known.failure or reason or None

    def sweep(self) -> None:
        """Asks writers what it is time to ask, and lets go of what is over. Several times a second."""
        with self._lock:
            rooms = list(self._rooms.values())
            self._prefills.sweep(lambda prefill: any(room.waits_for(prefill) for room in rooms))
            self._questions.sweep(rooms)
            for known in rooms:
                if known.state is ReceiveState.QUARANTINED:
                    self._let_go(known)

    def on_digest(self, digest: Digest) -> None:
        """A writer has said what it wrote; of an earlier owner of the room or slot it is old news."""
        with self._lock:
            known = self._rooms.get(digest.room)
            if self._verifier is None or known is None or digest.incarnation != self._incarnation:
                return
            if known.waits_at(digest.prefill) and known.slot == Slot(digest.slot, digest.generation):
                self._verifier.take(digest)

    # -- any thread ----------------------------------------------------------------------------------

    def lost(self, endpoint: Endpoint, how: Loss) -> None:
        """A prefill rank is lost: every room that waits for it fails now, and says so."""
        with self._lock:
            for prefill in self._prefills.lost(endpoint, how):
                self._fail_rooms_of(prefill, how.value)

    def held(self) -> Held:
        """What is in use now."""
        with self._lock:
            held = [known.pages for known in self._rooms.values() if known.state is ReceiveState.QUARANTINED]
            slots = self._slots.free, self._slots.used, self._slots.quarantined
            counts = len(self._rooms), len(self._prefills), *slots, self._prefills.credits_left
            return Held(*counts, sum(held))

    # -- inside, under the lock ----------------------------------------------------------------------

    def _fail_rooms_of(self, prefill: Prefill | None, what: str) -> None:
        for known in self._rooms.values():
            if prefill is not None and known.state is ReceiveState.COUNTING and known.waits_for(prefill):
                known.fail(f"lost prefill {prefill.endpoint}: {what}")

    def _released(self, room: ReceivingRoom) -> bool:
        if room.state is ReceiveState.COMPLETE:  # everything has arrived, and nothing was sent twice
            return True
        return room.state is ReceiveState.QUARANTINED and self._questions.all_quiet(room)

    def _let_go(self, room: ReceivingRoom) -> None:
        if room.closed and self._released(room):
            for slot in (room.slot, *room.left):
                self._slots.give_back(slot)
            room.go(ReceiveState.CLOSED)
            del self._rooms[room.number]
            if self._verifier is not None:
                self._verifier.end(room.number)

    def _advance(self, room: ReceivingRoom) -> None:
        if room.failure is not None:
            room.fail(room.failure)
            return
        if room.lost_nic:  # but what is complete is complete, and its prefill may have nothing left to send
            room.spoiled |= self._slots.units(room.slot) != room.expected
            room.lost_nic = False
        if room.spoiled:
            self._begin_again(room)
            return
        if room.expected is None:
            self._learn_what_to_expect(room)
        if room.expected is None:
            return
        units = self._slots.units(room.slot)
        if self._engine.standstills != room.standstills:  # asked after the units were read
            room.fail(STOOD_STILL)
        elif units == room.expected:
            flaw = self._verifier.verdict(room.number) if self._verifier is not None else ""
            if flaw:
                logger.error("Room %d: %s", room.number, flaw)
                room.fail(flaw)
            elif flaw is not None:
                room.go(ReceiveState.COMPLETE)
        elif units > room.expected:
            room.fail(f"{units} units were counted where {room.expected} were expected")
        elif room.given_up:
            room.fail(f"{GIVEN_UP}: {units} of {room.expected} units have come")
            self._questions.introduce(room)

    def _learn_what_to_expect(self, room: ReceivingRoom) -> None:
        """From the layouts of its writers, once all have said what theirs is."""
        prefills = [writer.prefill for writer in room.writers]
        refusal = next((p.refusal for p in prefills if p.refusal is not None), None)
        layouts = [p.layout for p in prefills if p.layout is not None]
        if refusal is None and len(layouts) < len(prefills):
            refusal = self._questions.unanswered(room)
        if refusal is not None:
            room.fail(refusal)
        elif len(layouts) == len(prefills):
            room.expected = expected_units(layouts, self._layout, room.number, self._incarnation, room.pages)
            if self._verifier is not None:
                places = [prefill.endpoint for prefill in prefills]
                self._verifier.expect(room.number, dict(zip(places, layouts, strict=True)))

    def _notice_lost_nics(self) -> None:
        """What was on its way to a NIC of ours that is gone will never be counted: it has to come again."""
        removed = self._engine.nics_removed
        if removed != self._nics_removed:
            self._nics_removed = removed
            for room in self._rooms.values():
                room.lost_nic |= room.state is ReceiveState.COUNTING

    def _begin_again(self, room: ReceivingRoom) -> None:
        """Counts from nothing in a new slot. The old one rests until the room ends: late writes may come."""
        try:
            slot = self._slots.take()
        except NoFreeSlotError as error:
            room.fail(str(error))
            return
        old, room.slot, room.spoiled = room.slot, slot, False
        self._slots.quarantine(old)
        room.left.append(old)
        if self._verifier is not None:
            self._verifier.begin_again(room.number)
        places = old.index, old.generation, slot.index, slot.generation
        for writer in room.writers:
            self._send(writer.prefill.endpoint, Again(self._incarnation, room.number, *places))
