"""The counting side: a decode rank's view of its prefill ranks and of the rooms that it waits for.

Nobody tells decode that a request is complete: its engine counts units per slot, and the scheduler's
poll compares the count with what the prefill's layout says will come. Messages only bring a prefill's
layout (once) and bad news. The control thread calls the ``on_*`` methods, the scheduler's thread the
others: hence the lock.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sglang_pd_fabric.fabric.engine import Engine, Peer, Region
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.messenger.compatibility import judge
from sglang_pd_fabric.messenger.credits import Credits
from sglang_pd_fabric.messenger.integrity import Gather, Verifier, gather_host
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import (
    NO_SLOT,
    Again,
    Digest,
    Endpoint,
    Failure,
    Hello,
    Message,
    Pull,
    Ready,
    Refusal,
    RemoteRegion,
    Shared,
    Spoiled,
    Welcome,
)
from sglang_pd_fabric.messenger.sharding import expected_units
from sglang_pd_fabric.messenger.slots import NoFreeSlotError, Slot, SlotTable
from sglang_pd_fabric.messenger.states import FirstToken, Held, ReceiveState, transition

logger = logging.getLogger(__name__)


class RoomInUseError(RuntimeError):
    """The client gave two live requests the same room number."""


@dataclass
class _Prefill:
    credits: int
    layout: LayoutRecord | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class _Writer:
    """NICs of a prefill rank that ours know, because the provider wants it before they write to us."""

    addresses: tuple[bytes, ...]
    peers: list[Peer]


@dataclass
class _Room:
    slot: Slot
    writers: tuple[Endpoint, ...]
    pages: int
    state: ReceiveState = ReceiveState.COUNTING
    expected: int | None = None
    failure: str | None = None
    spoiled: bool = False
    left: list[Slot] = field(default_factory=list)  # slots that it counted in before

    def go(self, following: ReceiveState) -> None:
        self.state = transition(self.state, following)


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
    ) -> None:
        self._engine = engine
        self._layout = layout
        self._kv = tuple(RemoteRegion(r.base, r.nbytes, r.keys) for r in kv)
        self._aux = tuple(RemoteRegion(r.base, r.nbytes, r.keys) for r in aux)
        self._addresses = tuple(nic.address for nic in engine.nics)
        self._incarnation = incarnation
        self._reply = reply
        self._send = send
        self._shared = shared
        self._verifier = Verifier(layout, (*kv, *aux), incarnation, gather) if layout.integrity else None
        self._slots = SlotTable(engine)
        self._nics_removed = engine.nics_removed
        self._prefills: dict[Endpoint, _Prefill] = {}
        self._credits = Credits(engine.profile)
        self._writers: dict[Endpoint, _Writer] = {}  # the control thread's
        self._rooms: dict[int, _Room] = {}
        self._lock = threading.RLock()

    # -- scheduler's thread --------------------------------------------------------------------------

    def hello(self, prefill: Endpoint) -> Hello:
        """The introduction to send to a prefill rank before the first pull."""
        with self._lock:
            known = self._prefills.get(prefill)
            # Said again, it grants what it did: a live prefill goes by the first.
            granted = (known.credits if known else 0) or self._credits.grant()
            self._prefills[prefill] = _Prefill(granted)
        return Hello(
            self._incarnation,
            prefill,
            self._reply,
            self._layout,
            self._addresses,
            self._kv,
            self._aux,
            granted,
            self._shared,
        )

    def pull(
        self,
        room: int,
        writers: Sequence[Endpoint],
        pages: npt.NDArray[np.int32],
        aux_row: int,
        prefix_tokens: int,
        decode_ranks: int,
        first_token: FirstToken = "prefill",
    ) -> Pull:
        """Arms a slot for the room. The message goes to every writer.

        Args:
            writers: the prefill ranks that will write.
            pages: destination page ids, shape ``[pages]``.
            aux_row: destination row of the metadata buffers.
            prefix_tokens: tokens that need no transfer.
            decode_ranks: decode ranks that pull this room from each writer.
            first_token: who computes the first token of the answer.

        Raises:
            RoomInUseError: a live request has this room number.
            NoFreeSlotError: more requests are in flight than there are slots.
        """
        with self._lock:
            if room in self._rooms:
                raise RoomInUseError(f"bootstrap_room {room} is in use by another request; give each its own")
            slot = self._slots.take()
            self._rooms[room] = _Room(slot, tuple(writers), len(pages))
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
            first_token,
        )

    def poll(self, room: int) -> tuple[ReceiveState, str | None]:
        """COUNTING, COMPLETE or FAILED with the reason. Reads one counter."""
        with self._lock:
            known = self._rooms.get(room)
            if known is None:
                return ReceiveState.COUNTING, None
            if known.state is ReceiveState.COUNTING:
                self._notice_lost_nics()
                self._advance(room, known)
            return known.state, known.failure

    def close(self, room: int, *, quiet: bool) -> None:
        """The scheduler is done with the room.

        Args:
            quiet: no writer can write for it any more. Otherwise its slot goes into quarantine and the
                room must be closed once more.
        """
        with self._lock:
            known = self._rooms.get(room)
            if known is None:
                return
            if known.state is ReceiveState.COUNTING:
                self._fail(known, "closed before it was complete")
            if known.state is ReceiveState.FAILED:
                self._slots.quarantine(known.slot)
                known.go(ReceiveState.QUARANTINED)
            if known.state is ReceiveState.QUARANTINED and not quiet:
                return
            for slot in (known.slot, *known.left):
                self._slots.give_back(slot)
            known.go(ReceiveState.CLOSED)
            del self._rooms[room]
            if self._verifier is not None:
                self._verifier.end(room)

    def forget(self, prefills: Iterable[Endpoint]) -> None:
        """These prefill ranks are gone: what they were granted is free again. Any thread."""
        with self._lock:
            for prefill in prefills:
                known = self._prefills.pop(prefill, None)
                if known is not None:
                    self._credits.give_back(known.credits)
                writer = self._writers.pop(prefill, None)
                if writer is not None:
                    _remove(writer)

    def held(self) -> Held:
        """What is in use now. Any thread."""
        with self._lock:
            slots = self._slots
            return Held(
                len(self._rooms),
                len(self._prefills),
                slots.free,
                slots.used,
                slots.quarantined,
                self._credits.left,
            )

    # -- control thread ------------------------------------------------------------------------------

    def lost(self, prefill: Endpoint, loss: Loss) -> None:
        """A prefill rank is gone, or seems to be: its rooms fail, and what it was granted is free again."""
        with self._lock:
            for room in self._rooms.values():
                if prefill in room.writers and room.state is ReceiveState.COUNTING:
                    room.failure = room.failure or f"lost prefill {prefill}: {loss.value}"
            self.forget([prefill])

    def on_welcome(self, welcome: Welcome) -> Ready | None:
        """Learns what a prefill's layout is. Returns what to answer, where the provider wants that."""
        known = self._prefills.get(welcome.prefill)
        if known is None:
            logger.warning("Welcome from %s, whom we never met; dropped", welcome.prefill)
            return None
        verdict = judge(welcome.layout, self._layout)
        if verdict.refusal is not None:
            logger.error("Prefill %s welcomed us, but we refuse it: %s", welcome.prefill, verdict.refusal)
            known.refusal = verdict.refusal
            return None
        if verdict.waived:
            logger.warning("Prefill %s: %s", welcome.prefill, verdict.waived)
        answer = None
        if self._engine.profile.inserts_both_ways:
            problem = self._admit(welcome)
            answer = Ready(self._incarnation, welcome.addresses, problem[:4096])
            known.refusal = problem or None
        known.layout = welcome.layout
        return answer

    def on_refusal(self, refusal: Refusal) -> None:
        known = self._prefills.get(refusal.prefill)
        if known is None:
            logger.warning("Refusal from %s, whom we never met; dropped", refusal.prefill)
            return
        logger.error("Prefill %s refused us: %s", refusal.prefill, refusal.reason)
        known.refusal = refusal.reason

    def on_failure(self, failure: Failure) -> None:
        """Bad news about one request; of an earlier owner of the room or slot it is ignored."""
        known = self._rooms.get(failure.room)
        if known is not None and known.slot == Slot(failure.slot, failure.generation):
            known.failure = known.failure or failure.reason

    def on_spoiled(self, spoiled: Spoiled) -> None:
        """The count of a slot cannot be trusted any more; of an earlier slot of the room it is old news."""
        with self._lock:
            known = self._rooms.get(spoiled.room)
            if known is None or known.state is ReceiveState.COMPLETE:
                self._send(spoiled.prefill, Again(self._incarnation, spoiled.room, 0, NO_SLOT))
            elif known.slot == Slot(spoiled.slot, spoiled.generation):
                known.spoiled = True

    def on_digest(self, digest: Digest) -> None:
        """A writer has said what it wrote; of an earlier owner of the room or slot it is old news."""
        with self._lock:
            known = self._rooms.get(digest.room)
            if self._verifier is None or known is None or digest.incarnation != self._incarnation:
                return
            if digest.prefill in known.writers and known.slot == Slot(digest.slot, digest.generation):
                self._verifier.take(digest)

    # -- inside --------------------------------------------------------------------------------------

    def _admit(self, welcome: Welcome) -> str:
        """Lets our NICs know a prefill's, in place of those of an earlier process. Why not, or nothing."""
        known = self._writers.get(welcome.prefill)
        if known is not None:
            if known.addresses == welcome.addresses:
                return ""
            _remove(known)
            self._writers.pop(welcome.prefill, None)
        try:
            peers = self._engine.admit(welcome.addresses)
        except FabricError as error:
            logger.error("Prefill %s cannot write to us: %s", welcome.prefill, error)
            return f"decode cannot take prefill's NIC addresses: {error}"
        self._writers[welcome.prefill] = _Writer(welcome.addresses, peers)
        return ""

    def _advance(self, number: int, room: _Room) -> None:
        if room.failure is not None:
            self._fail(room, room.failure)
            return
        if room.spoiled:
            self._begin_again(number, room)
            return
        if room.expected is None:
            found = [self._prefills.get(writer) for writer in room.writers]
            prefills = [prefill for prefill in found if prefill is not None]
            if len(prefills) < len(found):
                self._fail(room, "prefill is gone")
                return
            refusal = next((p.refusal for p in prefills if p.refusal is not None), None)
            if refusal is not None:
                self._fail(room, refusal)
                return
            layouts = [p.layout for p in prefills if p.layout is not None]
            if len(layouts) < len(prefills):
                return
            room.expected = expected_units(layouts, self._layout, number, self._incarnation, room.pages)
            if self._verifier is not None:
                self._verifier.expect(number, dict(zip(room.writers, layouts, strict=True)))
        units = self._slots.units(room.slot)
        if units == room.expected:
            flaw = self._verifier.verdict(number) if self._verifier is not None else ""
            if flaw:
                logger.error("Room %d: %s", number, flaw)
                self._fail(room, flaw)
            elif flaw is not None:
                room.go(ReceiveState.COMPLETE)
        elif units > room.expected:
            self._fail(room, f"{units} units were counted where {room.expected} were expected")

    def _notice_lost_nics(self) -> None:
        """What was on its way to a NIC of ours that is gone will never be counted: it has to come again."""
        removed = self._engine.nics_removed
        if removed != self._nics_removed:
            self._nics_removed = removed
            for room in self._rooms.values():
                room.spoiled = room.state is ReceiveState.COUNTING

    def _begin_again(self, number: int, room: _Room) -> None:
        """Counts from nothing in a new slot. The old one rests until the room ends: late writes may come."""
        try:
            slot = self._slots.take()
        except NoFreeSlotError as error:
            self._fail(room, str(error))
            return
        self._slots.quarantine(room.slot)
        room.left.append(room.slot)
        room.slot = slot
        room.spoiled = False
        if self._verifier is not None:
            self._verifier.begin_again(number)
        for writer in room.writers:
            self._send(writer, Again(self._incarnation, number, slot.index, slot.generation))

    def _fail(self, room: _Room, reason: str) -> None:
        room.failure = reason
        room.go(ReceiveState.FAILED)


def _remove(writer: _Writer) -> None:
    for peer in writer.peers:
        peer.remove()
