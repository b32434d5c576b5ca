"""The state of the model, as values, and how one follows from another."""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

from sglang_pd_fabric.messenger.states import ReceiveState, SendState

T = TypeVar("T")


class Request(NamedTuple):
    """A request on decode (``ReceivingRoom``); ``state`` None: it has not pulled yet."""

    state: ReceiveState | None = None
    page: int = 0
    slot: int = 0
    generation: int = 0
    writers: tuple[int, ...] = ()  # their incarnations when it pulled
    quiet: frozenset[int] = frozenset()
    counted: frozenset[int] = frozenset()  # whose writes have really landed: the oracle


class Slot(NamedTuple):
    """A completion slot (``SlotTable`` and the core's word)."""

    generation: int = 1
    units: int = 0
    owner: int | None = None  # in use or in quarantine


class Pull(NamedTuple):
    """What a Pull says; ``PullId`` is its slot and generation."""

    request: int
    page: int
    slot: int
    generation: int


class Room(NamedTuple):
    """A room on a writer (``rooms.Room``), under its number."""

    number: int
    pull: Pull
    state: SendState
    later: Pull | None = None


class Writer(NamedTuple):
    """A process of a prefill rank; ``incarnation`` counts its starts."""

    incarnation: int = 0
    alive: bool = True
    frozen: bool = False
    stale: bool = False  # frozen for longer than anybody waits
    settling: bool = False  # what was sent before that may still come
    rooms: tuple[Room, ...] = ()
    early: frozenset[Pull] = frozenset()
    waiting: frozenset[Pull] = frozenset()


class Message(NamedTuple):
    """``kind``: pull and abort go to the writer, quiet and failure come from it."""

    kind: str
    writer: int
    incarnation: int
    pull: Pull


class Write(NamedTuple):
    """A write that was posted and has not arrived."""

    writer: int
    incarnation: int
    pull: Pull


class State(NamedTuple):
    requests: tuple[Request, ...]
    pages: tuple[int | None, ...]  # whose each page is
    slots: tuple[Slot, ...]
    writers: tuple[Writer, ...]
    known: tuple[int | None, ...]  # incarnation that decode has met at each place
    lost: frozenset[tuple[int, int]] = frozenset()  # (writer, incarnation) known to have ended
    messages: frozenset[Message] = frozenset()
    wire: frozenset[Write] = frozenset()
    deaths: int = 0  # what may still go wrong
    freezes: int = 0
    failures: int = 0
    losses: int = 0


def put(row: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*row[:index], value, *row[index + 1 :])


def with_request(state: State, index: int, /, **changes: Any) -> State:
    changed = state.requests[index]._replace(**changes)
    return state._replace(requests=put(state.requests, index, changed))


def with_writer(state: State, index: int, writer: Writer) -> State:
    return state._replace(writers=put(state.writers, index, writer))


def stale(state: State, index: int, incarnation: int) -> State:
    writer = state.writers[index]
    if writer.frozen and writer.incarnation == incarnation:
        return with_writer(state, index, writer._replace(stale=True))
    return state


def unanswered(state: State, index: int) -> bool:
    """Whether a writer was asked and nothing of that is left: the message, or its answer, was lost."""
    request = state.requests[index]
    pull = Pull(index, request.page, request.slot, request.generation)
    for number, writer in enumerate(state.writers):
        said = any(m.pull == pull and m.writer == number and m.kind != "failure" for m in state.messages)
        if number not in request.quiet and writer.alive and not said and pull not in writer.waiting:
            return True
    return False


def without(rooms: tuple[Room, ...], number: int) -> tuple[Room, ...]:
    return tuple(room for room in rooms if room.number != number)


def with_room(state: State, index: int, room: Room) -> State:
    writer = state.writers[index]
    rooms = tuple(room if each.number == room.number else each for each in writer.rooms)
    return with_writer(state, index, writer._replace(rooms=rooms))


def advance(state: State, slot: int) -> State:
    """``advance_slot``: what comes for the old generation counts as late."""
    present = state.slots[slot]
    ended = present._replace(generation=present.generation + 1, units=0)
    return state._replace(slots=put(state.slots, slot, ended))


def send(state: State, messages: Iterable[Message]) -> State:
    return state._replace(messages=state.messages | frozenset(messages))
