"""The abort and slot protocol of one decode rank and its writers, small enough to be searched completely.

A state is a value; ``Model.steps`` says what may happen next. Messages are a set: they overtake each other as
they like, and get lost with a process or, as often as the budget says, without one. Each writer has one write
for each pull, so a request is complete when every writer's has been counted. Time does not exist: what takes
time may happen at any moment, except where the code relies on a time limit; there the limit is the condition:

* ``linger`` (``Prefills.wrote_last``, DEAD): the kernel holds nothing of the ended process any more;
* ``hold`` (the same, SILENT): the writer has been frozen for longer than its standstill limit, and its kernel
  has delivered what it had; when it goes on, it notices (``SendingRooms.notice_standstill``);
* ``settling`` (``SETTLE_S``): what was sent to it before that has been read.

Each rule names the code that it mirrors. Transitions of both state machines are those of
``states.transition``. A path that breaks (``Spoiled``, ``Again``) is left out. A mutant is a rule left out;
the search must find what that breaks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sglang_pd_fabric.messenger.states import ReceiveState, SendState, transition

from .values import (
    Message,
    Pull,
    Request,
    Room,
    Slot,
    State,
    Write,
    Writer,
    advance,
    put,
    send,
    stale,
    unanswered,
    with_request,
    with_room,
    with_writer,
    without,
)

R, S = ReceiveState, SendState


class WrongError(AssertionError):
    """The model has reached a state that must not be."""


@dataclass(frozen=True)
class Model:
    """Bounds of a search.

    Attributes:
        numbers: room number of each request.
        pages, slots, writers: how many there are.
        deaths, freezes, failures, losses: how often a writer may end (and start again), freeze, fail a
            room, and a message be lost.
        eager: aborts are said again although nothing was lost.
        mutant: the rule to leave out.
    """

    numbers: tuple[int, ...] = (7, 7)
    pages: int = 1
    slots: int = 1
    writers: int = 1
    deaths: int = 0
    freezes: int = 0
    failures: int = 0
    losses: int = 0
    eager: bool = False
    mutant: str = ""

    def start(self) -> State:
        return State(
            (Request(),) * len(self.numbers),
            (None,) * self.pages,
            (Slot(),) * self.slots,
            (Writer(),) * self.writers,
            (0,) * self.writers,
            deaths=self.deaths,
            freezes=self.freezes,
            failures=self.failures,
            losses=self.losses,
        )

    def over(self, state: State) -> bool:
        """Every request has ended."""
        return all(each.state is R.CLOSED for each in state.requests)

    def steps(self, state: State) -> Iterator[State]:
        """Every state that may follow.

        Raises:
            WrongError: something happens that must not.
        """
        for index in range(len(state.requests)):
            yield from self._decode(state, index)
        for index in range(self.writers):
            yield from self._writer(state, index)
        for message in state.messages:
            yield from self._deliver(state, message)
        for write in state.wire:
            yield from self._land(state, write)

    # -- decode ---------------------------------------------------------------------------------------

    def _decode(self, state: State, index: int) -> Iterator[State]:
        request = state.requests[index]
        if request.state is None:
            yield from self._pull(state, index)
        elif request.state is R.COUNTING:
            # DecodeMessenger.poll, then close of a complete room
            if state.slots[request.slot].units == self.writers:
                if len(request.counted) < self.writers:
                    raise WrongError(f"request {index} is complete, but not everything of it has arrived")
                yield self._close(with_request(state, index, state=transition(R.COUNTING, R.COMPLETE)), index)
            yield self._abort(state, index)
        elif request.state is R.QUARANTINED:
            missing = [w for w in range(self.writers) if w not in request.quiet]
            if not missing or self.mutant == "no quarantine":
                yield self._close(state, index)  # released(), then close()
            if self.mutant != "an abort is said once" and (self.eager or unanswered(state, index)):
                yield self._ask(state, index)  # sweep()
            for writer in missing:
                if self._wrote_last(state, writer, request.writers[writer]):
                    late = stale(state, writer, request.writers[writer])
                    yield with_request(late, index, quiet=request.quiet | {writer})

    def _pull(self, state: State, index: int) -> Iterator[State]:
        """``DecodeMessenger.pull``: RoomInUseError, PrefillGoneError, NoFreeSlotError, then the Pull."""
        number = self.numbers[index]
        in_use = [
            each
            for each, other in zip(self.numbers, state.requests, strict=True)
            if other.state not in (None, R.CLOSED) and each == number
        ]
        if in_use or None in state.known:
            return
        for page, owner in enumerate(state.pages):
            slot = next((i for i, each in enumerate(state.slots) if each.owner is None), None)
            if owner is not None or slot is None:
                continue
            generation = state.slots[slot].generation
            pull = Pull(index, page, slot, generation)
            writers = tuple(each for each in state.known if each is not None)
            taken = state._replace(
                requests=put(state.requests, index, Request(R.COUNTING, page, slot, generation, writers)),
                pages=put(state.pages, page, index),
                slots=put(state.slots, slot, state.slots[slot]._replace(owner=index)),
            )
            yield send(taken, (Message("pull", w, i, pull) for w, i in enumerate(writers)))
            return

    def _abort(self, state: State, index: int) -> State:
        """``DecodeMessenger.abort``, also after a Failure or the loss of a writer."""
        request = state.requests[index]
        failed = transition(request.state or R.COUNTING, R.FAILED)
        state = with_request(state, index, state=transition(failed, R.QUARANTINED))
        return self._ask(advance(state, request.slot), index)

    def _ask(self, state: State, index: int) -> State:
        """``_ask_for_quiet``. It reaches whoever answers at that place now."""
        request = state.requests[index]
        pull = Pull(index, request.page, request.slot, request.generation)
        asked = [w for w in range(self.writers) if w not in request.quiet and state.writers[w].alive]
        return send(state, (Message("abort", w, state.writers[w].incarnation, pull) for w in asked))

    def _wrote_last(self, state: State, writer: int, incarnation: int) -> bool:
        """``Prefills.wrote_last``."""
        arriving = any(write[:2] == (writer, incarnation) for write in state.wire)
        if (writer, incarnation) in state.lost:
            return not arriving or self.mutant == "nothing lingers"
        present = state.writers[writer]
        return present.frozen and present.incarnation == incarnation and not arriving

    def _close(self, state: State, index: int) -> State:
        """``_let_go``: pages and slot have no owner any more."""
        request = state.requests[index]
        if request.state is R.COMPLETE:  # SlotTable.give_back of a slot in use
            state = advance(state, request.slot)
        slot = state.slots[request.slot]
        return state._replace(
            requests=put(state.requests, index, Request(transition(request.state or R.FAILED, R.CLOSED))),
            pages=put(state.pages, request.page, None),
            slots=put(state.slots, request.slot, slot._replace(owner=None)),
        )

    def _lost(self, state: State, writer: int, incarnation: int, *, dead: bool) -> State:
        """``DecodeMessenger.lost``: its rooms fail; it has to be met again."""
        if dead:
            state = state._replace(lost=state.lost | {(writer, incarnation)})
        if state.known[writer] == incarnation:
            state = state._replace(known=put(state.known, writer, None))
        for index, request in enumerate(state.requests):
            if request.state is R.COUNTING and request.writers[writer] == incarnation:
                state = self._abort(state, index)
        return state

    # -- writers --------------------------------------------------------------------------------------

    def _writer(self, state: State, index: int) -> Iterator[State]:
        writer = state.writers[index]
        for ended in range(writer.incarnation + (not writer.alive)):
            if (index, ended) not in state.lost:  # Links: also when another process is there already
                yield self._lost(state, index, ended, dead=True)
        if not writer.alive:
            yield with_writer(state, index, Writer(writer.incarnation + 1))
            return
        if state.known[index] is None and not writer.frozen:  # Hello and Welcome
            yield state._replace(known=put(state.known, index, writer.incarnation))
        if state.deaths:
            kept = frozenset(m for m in state.messages if m.writer != index or m.kind in ("quiet", "failure"))
            dead = with_writer(state, index, Writer(writer.incarnation, alive=False))
            yield dead._replace(deaths=state.deaths - 1, messages=kept)
        if writer.frozen:
            if state.known[index] == writer.incarnation:
                yield self._lost(state, index, writer.incarnation, dead=False)
            yield self._thaw(state, index)
            return
        if state.freezes:
            frozen = with_writer(state, index, writer._replace(frozen=True))
            yield frozen._replace(freezes=state.freezes - 1)
        for room in writer.rooms:
            yield from self._room(state, index, room)
        yield from self._settle(state, index)
        for pull in writer.waiting:
            yield from self._answer(state, index, pull)

    def _settle(self, state: State, index: int) -> Iterator[State]:
        """``SendingRooms.sweep``, some time after a standstill."""
        writer = state.writers[index]
        if not writer.settling or any(message.writer == index for message in state.messages):
            return
        settled = with_writer(state, index, writer._replace(settling=False))
        for room in writer.rooms:
            if room.state is S.ASKED:
                settled = with_room(settled, index, room._replace(state=transition(room.state, S.READY)))
        yield settled

    def _room(self, state: State, index: int, room: Room) -> Iterator[State]:
        writer = state.writers[index]
        write = Write(index, writer.incarnation, room.pull)
        if room.state is S.READY:  # everything is handed over at once
            posted = with_room(state, index, room._replace(state=transition(room.state, S.FLUSHING)))
            yield posted._replace(wire=posted.wire | {write})
        if room.state is S.FLUSHING and write not in state.wire:  # PrefillMessenger.poll
            yield with_room(state, index, room._replace(state=transition(room.state, S.DONE)))
        if room.state in (S.READY, S.FLUSHING) and state.failures:
            failed = self._fail(state._replace(failures=state.failures - 1), index, room)
            yield send(failed, [Message("failure", index, writer.incarnation, room.pull)])
        if room.state in (S.DONE, S.FAILED):  # SendingRooms.leave, and the pull that waited for it
            left = with_writer(state, index, writer._replace(rooms=without(writer.rooms, room.number)))
            yield left if room.later is None else self._take(left, index, room.number, room.later)

    def _fail(self, state: State, index: int, room: Room) -> State:
        """``SendingRooms.fail``: nothing more is posted. What was posted stays on its way."""
        if room.state in (S.DONE, S.FAILED):
            return state
        return with_room(state, index, room._replace(state=transition(room.state, S.FAILED)))

    def _thaw(self, state: State, index: int) -> State:
        """``notice_standstill`` comes before anything is posted."""
        writer = state.writers[index]
        thawed = with_writer(state, index, writer._replace(frozen=False, stale=False))
        if writer.stale and self.mutant != "a standstill is not noticed":
            for room in writer.rooms:
                thawed = self._fail(thawed, index, room)
            if self.mutant != "nobody settles":
                present = thawed.writers[index]._replace(settling=True)
                thawed = with_writer(thawed, index, present)
        return thawed

    def _take(self, state: State, index: int, number: int, pull: Pull) -> State:
        """``PrefillMessenger.on_pull``."""
        writer = state.writers[index]
        present = next((room for room in writer.rooms if room.number == number), None)
        if present is not None:
            return with_room(state, index, present._replace(later=pull))
        early = pull in writer.early and self.mutant != "early aborts are forgotten"
        now = transition(S.ASKED, S.FAILED if early else S.READY)
        room = Room(number, pull, S.ASKED if writer.settling and not early else now)
        rooms = tuple(sorted((*writer.rooms, room), key=lambda each: each.number))
        return with_writer(state, index, writer._replace(rooms=rooms, early=writer.early - {pull}))

    def _heard_abort(self, state: State, index: int, pull: Pull) -> State:
        """``PrefillMessenger.on_abort``."""
        writer = state.writers[index]
        number = self.numbers[pull.request]
        room = next((each for each in writer.rooms if each.number == number), None)
        draining = Write(index, writer.incarnation, pull) in state.wire
        if room is not None and (room.pull == pull or self.mutant == "an abort means the room"):
            if room.pull != pull and room.state not in (S.DONE, S.FAILED):
                raise WrongError(f"the abort of request {pull.request} ends request {room.pull.request}")
            state = self._fail(state, index, room)
        elif room is not None and room.later == pull:
            state = with_room(state, index, room._replace(later=None))
        elif not draining:
            state = with_writer(state, index, writer._replace(early=writer.early | {pull}))
        writer = state.writers[index]
        return with_writer(state, index, writer._replace(waiting=writer.waiting | {pull}))

    def _answer(self, state: State, index: int, pull: Pull) -> Iterator[State]:
        """``Aborts.answer`` with ``SendingRooms.over``."""
        writer = state.writers[index]
        open_rooms = [r for r in writer.rooms if r.pull == pull and r.state not in (S.DONE, S.FAILED)]
        posted = Write(index, writer.incarnation, pull) in state.wire
        if open_rooms or (posted and self.mutant != "quiet is said early"):
            return
        answered = with_writer(state, index, writer._replace(waiting=writer.waiting - {pull}))
        yield send(answered, [Message("quiet", index, writer.incarnation, pull)])

    # -- between them ---------------------------------------------------------------------------------

    def _deliver(self, state: State, message: Message) -> Iterator[State]:
        kind, index, incarnation, pull = message
        rest = state._replace(messages=state.messages - {message})
        if state.losses and kind in ("abort", "quiet"):
            yield rest._replace(losses=state.losses - 1)
        writer = state.writers[index]
        if kind in ("pull", "abort"):
            if not writer.alive or writer.incarnation != incarnation:
                yield rest
            elif not writer.frozen and kind == "pull":
                yield self._take(rest, index, self.numbers[pull.request], pull)
            elif not writer.frozen:
                yield self._heard_abort(rest, index, pull)
            return
        request = state.requests[pull.request]
        concerned = (request.slot, request.generation) == (pull.slot, pull.generation)
        open_request = concerned and request.state not in (None, R.CLOSED)
        itself = open_request and request.writers[index] == incarnation
        if not itself and not (open_request and self.mutant == "any process may confirm"):
            yield rest
        elif kind == "failure" and request.state is R.COUNTING:  # on_failure
            yield self._abort(rest, pull.request)
        elif kind == "quiet" and request.state is R.QUARANTINED:  # on_quiet
            yield with_request(rest, pull.request, quiet=request.quiet | {index})
        else:
            yield rest

    def _land(self, state: State, write: Write) -> Iterator[State]:
        """A write arrives: bytes in its page, and a unit if its generation is the slot's (``slots.c``)."""
        index, incarnation, pull = write
        rest = state._replace(wire=state.wire - {write})
        process = state.writers[index]
        if not process.alive or process.incarnation != incarnation:
            yield rest  # lost with the process
        if state.pages[pull.page] != pull.request:
            raise WrongError(
                f"a write of request {pull.request} lands in a page that is not its own any more"
            )
        request = state.requests[pull.request]
        landed = with_request(rest, pull.request, counted=request.counted | {index})
        slot = state.slots[pull.slot]
        if slot.generation == pull.generation or self.mutant == "generations are ignored":
            slots = put(state.slots, pull.slot, slot._replace(units=slot.units + 1))
            landed = landed._replace(slots=slots)
        yield landed
