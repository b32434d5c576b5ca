"""What the writing side remembers of a request: who pulls it, what was handed over, and how it ended."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cachetools import TTLCache

from sglang_pd_fabric.fabric.transfer import PageList, Transfer
from sglang_pd_fabric.messenger.messages import Abort, Pull
from sglang_pd_fabric.messenger.states import FirstToken, SendState, transition

# What has ended is remembered for so many seconds, and so many of them at most.
REMEMBERED_S = 60.0
REMEMBERED = 8192


class PullId(NamedTuple):
    """Names one Pull: the room's number alone may come again, and so may the generation of a slot."""

    room: int
    incarnation: int
    slot: int
    generation: int

    @classmethod
    def of(cls, message: Pull | Abort) -> "PullId":
        return cls(message.room, message.incarnation, message.slot, message.generation)


class Sent(NamedTuple):
    """Bytes that a room's writes have moved, and the seconds in which any of them was under way.

    ``hidden_bytes`` of them had been moved when the last forward pass with a chunk of it ended, which was
    ``exposed_seconds`` ago. They were ``units`` pieces of pages in ``writes`` writes. ``peers`` has for each
    decode rank its host and its bytes; ``mapped_bytes`` of all went into memory that is mapped here.
    ``pulled`` and ``handed_over`` are when the first Pull came and when nothing was left to hand over, by the
    monotonic clock; 0: not yet.
    """

    nbytes: int = 0
    hidden_bytes: int = 0
    seconds: float = 0.0
    units: int = 0
    writes: int = 0
    exposed_seconds: float = 0.0
    peers: tuple[tuple[str, int], ...] = ()
    mapped_bytes: int = 0
    pulled: float = 0.0
    handed_over: float = 0.0


class Tombstone(NamedTuple):
    """A room that has failed.

    Attributes:
        reason: why.
        opened: whether the scheduler knew it.
        pulled: decode ranks that know it: what they pull now is another request.
    """

    reason: str
    opened: bool
    pulled: frozenset[int]


def disagreement(pull: Pull, pages: int, prompt: int, first_token: FirstToken = "prefill") -> str | None:
    """How decode's request is not the one that prefill has; None if it is."""
    if pull.first_token != first_token:
        return (
            f"prefill leaves the first token to {first_token}, decode to {pull.first_token}: "
            "SGLANG_PD_FABRIC_FIRST_TOKEN must be the same on both sides"
        )
    asked = len(pull.pages) // 4
    if asked != pages:
        return f"prefill has {pages} pages to send, decode asked for {asked}"
    if prompt and pull.prompt and prompt != pull.prompt:
        return f"bootstrap_room {pull.room} has another prompt on prefill than on decode: each needs its own"
    return None


ROW = -1  # in place of a first page: it is the metadata row


class Handed(NamedTuple):
    """Pages of a room that were handed over, or its metadata row.

    Attributes:
        src_pages: page ids of this side, shape ``[pages]``; the row's number.
        first: how many pages of the room lie before them, or ``ROW``.
        forward: the forward pass whose layers they wait for; 0: none.
    """

    src_pages: PageList
    first: int
    forward: int


class Tombstones:
    """Rooms that have failed, remembered for a while: a Pull that comes after them fails at once."""

    def __init__(self) -> None:
        self._rooms: TTLCache[int, Tombstone] = TTLCache(REMEMBERED, REMEMBERED_S)
        self._reasons: TTLCache[PullId, str] = TTLCache(REMEMBERED, REMEMBERED_S)

    def add(self, room: int, reason: str, *, opened: bool, pulled: Iterable[int] = ()) -> None:
        """Remembers it; see ``Tombstone``."""
        self._rooms[room] = Tombstone(reason, opened, frozenset(pulled))

    def explain(self, pulls: Iterable[PullId], reason: str) -> None:
        """Remembers why pulls have failed, for a decode rank that may not have heard of it."""
        self._reasons.update((pull, reason) for pull in pulls)

    def why(self, pull: PullId) -> str | None:
        """Why this pull has failed, if that is remembered."""
        return self._reasons.get(pull)

    def of(self, pull: Pull) -> Tombstone | None:
        """The room that the pull means, if that has failed already."""
        found = self._rooms.get(pull.room)
        return None if found is None or pull.incarnation in found.pulled else found

    def get(self, room: int) -> Tombstone | None:
        return self._rooms.get(room)

    def pop(self, room: int) -> Tombstone | None:
        return self._rooms.pop(room, None)


@dataclass(eq=False)
class Room:
    """A room on the prefill side. What is said of each decode rank is kept by its incarnation."""

    number: int
    state: SendState = SendState.ASKED
    pulls: dict[int, Pull] = field(default_factory=dict)  # with the slot in which it counts now
    names: dict[int, PullId] = field(default_factory=dict)  # with the slot in which it counted first
    pulled: float = 0.0  # when the first of them came
    later: dict[int, Pull] = field(default_factory=dict)  # for the next request with this number
    next_fails: str | None = None  # why that one fails
    next_opened: bool = False  # and whether the scheduler knows it already
    transfers: dict[int, Transfer] = field(default_factory=dict)
    reason: str | None = None
    opened: bool = False  # the scheduler has the request
    handed_over: int = 0  # pages that plans hold, from the first on
    row_handed_over: bool = False  # and the metadata row, without which no request is complete
    finished: float = 0.0  # when that was
    hidden_bytes: int = 0
    handed: list[Handed] = field(default_factory=list)
    waiting: dict[int, float] = field(default_factory=dict)  # for a new slot, since when
    renewed: set[int] = field(default_factory=set)  # of those, who has one
    aside: list[tuple[int, Transfer]] = field(default_factory=list)  # of slots that count no more
    failed: float = 0.0  # when it did
    repeats: Counter[int] = field(default_factory=Counter)
    stale: bool = False  # we stood still since it was pulled

    def go(self, following: SendState) -> None:
        self.state = transition(self.state, following)

    def take(self, pull: Pull) -> None:
        self.pulls[pull.incarnation] = pull
        self.names[pull.incarnation] = PullId.of(pull)
        self.pulled = self.pulled or time.monotonic()

    def fail_next(self, reason: str, *, opened: bool) -> None:
        """The next request with this number fails. The first reason stays.

        Args:
            opened: whether the scheduler knows it already.
        """
        if self.next_fails is None:
            self.next_fails, self.next_opened = reason, opened

    def pulled_as(self, name: PullId) -> bool:
        """Whether it is the room of this Pull."""
        return self.names.get(name.incarnation) == name

    @property
    def complete_pulls(self) -> bool:
        """Whether every decode rank that will pull the room has done so."""
        return bool(self.pulls) and all(len(self.pulls) >= pull.writers for pull in self.pulls.values())

    @property
    def over(self) -> bool:
        """No write of it is waiting or on a wire, and none can start any more."""
        return self.state in (SendState.DONE, SendState.FAILED) and self.quiet

    @property
    def quiet(self) -> bool:
        """No write of it is waiting or on a wire now."""
        return next(self.unfinished(), None) is None

    def unfinished(self) -> Iterator[tuple[int, Transfer]]:
        """Whose writes are waiting or on a wire, with the decode ranks that they go to."""
        every = (*self.transfers.items(), *self.aside)
        return ((incarnation, transfer) for incarnation, transfer in every if not transfer.status().quiet)

    def set_aside(self, incarnation: int) -> None:
        """Nothing more is posted under the present slot of this decode rank."""
        transfer = self.transfers.pop(incarnation, None)
        if transfer is not None:
            transfer.cancel()
            self.aside.append((incarnation, transfer))

    def wrote(self, incarnation: int) -> bool:
        """Whether this rank has written for the decode rank under its present slot; it may have no duty."""
        return incarnation in self.transfers

    def renew(self, incarnation: int) -> None:
        """This decode rank counts in a new slot."""
        if incarnation in self.waiting or self.wrote(incarnation):
            self.set_aside(incarnation)
            self.waiting.setdefault(incarnation, time.monotonic())
            self.renewed.add(incarnation)

    @property
    def reading(self) -> bool:
        """See ``PrefillMessenger.reading``."""
        return not self.quiet and (self.state is not SendState.FAILED or self.row_handed_over)

    @property
    def bytes_moved(self) -> int:
        return sum(transfer.status().bytes_done for transfer in self.transfers.values())

    def sent(self, host: Callable[[int], str], mapped: Callable[[int], bool]) -> Sent:
        """See ``Sent``; final when everything has ended.

        Args:
            host: knows where an incarnation runs.
            mapped: knows whether its memory is mapped here.
        """
        done = {incarnation: transfer.status() for incarnation, transfer in self.transfers.items()}
        return Sent(
            sum(status.bytes_done for status in done.values()),
            self.hidden_bytes,
            max((status.busy_ns for status in done.values()), default=0) / 1e9,
            sum(status.units_done for status in done.values()),
            sum(status.writes_done for status in done.values()),
            time.monotonic() - self.finished if self.row_handed_over else 0.0,
            tuple((host(each), status.bytes_done) for each, status in done.items()),
            sum(status.bytes_done for each, status in done.items() if mapped(each)),
            self.pulled,
            self.finished,
        )

    def release(self) -> None:
        for _, transfer in (*self.transfers.items(), *self.aside):
            transfer.release()
