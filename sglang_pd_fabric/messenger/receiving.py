"""What a decode rank remembers of a room: its slot, its writers, and how it ended."""

from dataclasses import dataclass, field

from sglang_pd_fabric.messenger.messages import Endpoint, PullName
from sglang_pd_fabric.messenger.prefills import Prefill
from sglang_pd_fabric.messenger.slots import Slot
from sglang_pd_fabric.messenger.states import ReceiveState, transition


@dataclass
class Writer:
    """A prefill rank that the room was pulled from.

    Attributes:
        quiet: nothing of it can arrive any more, since the room was aborted.
        over: it has answered the last question by saying that it has written all that it will.
        overs: how many questions in a row before that.
    """

    prefill: Prefill
    quiet: bool = False
    over: bool = False
    overs: int = 0


RESTARTED = "another process answers in its place"
GIVEN_UP = "prefill has nothing left to send, as when it has given up a decode that kept silent"
STOOD_STILL = "decode stood still for so long that prefill may have given its pages to other requests"


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
        lost_nic: a NIC of ours is gone, and what was on its way to it.
        pulled_at, aborted_at: when that was, by the awake clock; infinite: its Pull has yet to leave.
        asked_at: when its writers were last asked to confirm the abort, by the same.
        closed: the scheduler is done with it.
    """

    number: int
    first_slot: Slot
    slot: Slot
    writers: list[Writer]
    pages: int
    standstills: int
    pulled_at: float
    state: ReceiveState = ReceiveState.COUNTING
    expected: int | None = None
    failure: str | None = None
    spoiled: bool = False
    lost_nic: bool = False
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

    @property
    def pull_name(self) -> PullName:
        return PullName(self.number, self.first_slot.index, self.first_slot.generation)

    def asked(self) -> None:
        """Its writers are asked once more what is to come."""
        for writer in self.writers:
            writer.overs = writer.overs + 1 if writer.over else 0
            writer.over = False

    @property
    def given_up(self) -> bool:
        """No writer has anything left to write: each said so twice, as the last may not be counted yet."""
        return all(writer.overs >= 2 for writer in self.writers)

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
