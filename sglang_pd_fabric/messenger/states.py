"""The states of a request on both sides and the legal transitions, written down once."""

from enum import Enum
from typing import Literal, NamedTuple, TypeVar

State = TypeVar("State", bound=Enum)
# Who samples the first token. Prefill: it sends pages of the whole prompt, and the token in the metadata row.
# Decode: it gets pages of the prompt without its last token, and runs that one itself.
FirstToken = Literal["prefill", "decode"]


class SendState(Enum):
    """A room on the prefill side."""

    ASKED = "asked"  # some decode rank has pulled, others have yet to
    READY = "ready"  # all have; pages may be sent
    FLUSHING = "flushing"  # everything is handed over, not all of it has ended
    DONE = "done"
    FAILED = "failed"


class ReceiveState(Enum):
    """A room on the decode side."""

    COUNTING = "counting"
    COMPLETE = "complete"
    FAILED = "failed"
    QUARANTINED = "quarantined"  # aborted: its slot and pages wait for the writers to be quiet
    CLOSED = "closed"


class Held(NamedTuple):
    """What a messenger holds at the moment.

    Attributes:
        rooms: requests; on prefill also ended ones with writes under way.
        peers: ranks of the other side that it knows.
        slots_free, slots_used, slots_quarantined: completion slots, on decode.
        credits_free: writes that decode may yet allow to prefill ranks, see `Credits`.
        pages_held: pages of aborted requests that no other may have yet, on decode.
    """

    rooms: int
    peers: int
    slots_free: int = 0
    slots_used: int = 0
    slots_quarantined: int = 0
    credits_free: int = 0
    pages_held: int = 0


class PrefillGoneError(RuntimeError):
    """A prefill rank was lost between its introduction and the pull; the next request says Hello again."""


class RoomInUseError(RuntimeError):
    """The client gave two live requests the same room number.

    Args:
        room: the number.
        side: where both were seen.
        held: the other one has ended, but pages of it cannot be given to anybody yet.
    """

    def __init__(self, room: int, side: str, *, held: bool = False) -> None:
        why = "whose pages may still be written to" if held else "give each its own"
        super().__init__(
            f"bootstrap_room {room} is in use by another request on {side}{', ' if held else '; '}{why}"
        )


class IllegalTransitionError(RuntimeError):
    """A state machine was asked to go where it cannot. Always a bug of ours."""


_LEGAL: dict[Enum, frozenset[Enum]] = {
    SendState.ASKED: frozenset({SendState.READY, SendState.FAILED}),
    SendState.READY: frozenset({SendState.FLUSHING, SendState.FAILED}),
    SendState.FLUSHING: frozenset({SendState.DONE, SendState.FAILED}),
    SendState.DONE: frozenset(),
    SendState.FAILED: frozenset(),
    ReceiveState.COUNTING: frozenset({ReceiveState.COMPLETE, ReceiveState.FAILED}),
    ReceiveState.COMPLETE: frozenset({ReceiveState.CLOSED}),
    ReceiveState.FAILED: frozenset({ReceiveState.QUARANTINED}),
    ReceiveState.QUARANTINED: frozenset({ReceiveState.CLOSED}),
    ReceiveState.CLOSED: frozenset(),
}


def transition(present: State, following: State) -> State:
    """``following``, when it may come after ``present``.

    Raises:
        IllegalTransitionError: it may not.
    """
    if following not in _LEGAL[present]:
        raise IllegalTransitionError(f"{type(present).__name__}: {present.value} -> {following.value}")
    return following
