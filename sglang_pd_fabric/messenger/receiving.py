"""What a decode rank remembers of a room: its slot, its writers, and how it ended."""

from dataclasses import dataclass, field

from sglang_pd_fabric.messenger.messages import Endpoint
from sglang_pd_fabric.messenger.prefills import Prefill
from sglang_pd_fabric.messenger.slots import Slot
from sglang_pd_fabric.messenger.states import ReceiveState, transition


@dataclass
class Writer:
    """A prefill rank that the room was pulled from.

    Attributes:
        quiet: nothing of it can arrive any more, since the room was aborted.
    """

    prefill: Prefill
    quiet: bool = False


@dataclass
class ReceivingRoom:
    """A room on the decode side.

    Attributes:
        first_slot: the slot of the Pull; with it the room's pull is named for as long as it lives.
        slot: where it counts now.
        left: slots that it counted in before.
        pages: pages of the pool that it will fill.
        standstills: of the engine when it was pulled.
        spoiled: what the slot has counted cannot be trusted.
        aborted_at, asked_at: when it was aborted, and when its writers were last asked to confirm it, by the
            awake clock.
        closed: the scheduler is done with it.
    """

    number: int
    first_slot: Slot
    slot: Slot
    writers: list[Writer]
    pages: int
    standstills: int
    state: ReceiveState = ReceiveState.COUNTING
    expected: int | None = None
    failure: str | None = None
    spoiled: bool = False
    left: list[Slot] = field(default_factory=list)
    aborted_at: float = 0.0
    asked_at: float = 0.0
    closed: bool = False

    def go(self, following: ReceiveState) -> None:
        self.state = transition(self.state, following)

    def fail(self, reason: str) -> None:
        """The first reason stays."""
        self.failure = self.failure or reason
        self.go(ReceiveState.FAILED)

    def writer(self, endpoint: Endpoint, incarnation: int) -> Writer | None:
        """The writer that is this process, if it is one of ours."""
        for writer in self.writers:
            if writer.prefill.endpoint == endpoint and writer.prefill.incarnation == incarnation:
                return writer
        return None

    def waits_at(self, endpoint: Endpoint) -> bool:
        return any(writer.prefill.endpoint == endpoint for writer in self.writers)

    def waits_for(self, prefill: Prefill) -> bool:
        return any(writer.prefill is prefill for writer in self.writers)
