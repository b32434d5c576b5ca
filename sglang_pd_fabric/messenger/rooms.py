"""What the writing side remembers of a request: who pulls it, what was handed over, and how it ended."""

from dataclasses import dataclass, field
from typing import NamedTuple

from sglang_pd_fabric.fabric.transfer import Transfer
from sglang_pd_fabric.messenger.messages import Pull
from sglang_pd_fabric.messenger.states import SendState, transition


class Sent(NamedTuple):
    """Bytes that a room's writes have moved, and the seconds in which any of them was under way.

    ``hidden_bytes`` of them had been moved when the last forward pass with a chunk of it ended.
    """

    nbytes: int
    hidden_bytes: int
    seconds: float


class Tombstone(NamedTuple):
    """A room that is over: since when, why it failed (None: it did not), whether the scheduler knew it."""

    since: float
    reason: str | None
    opened: bool


@dataclass
class Room:
    number: int
    state: SendState = SendState.ASKED
    pulls: dict[int, Pull] = field(default_factory=dict)
    transfers: dict[int, Transfer] = field(default_factory=dict)
    reason: str | None = None
    opened: bool = False  # the scheduler has the request
    handed_over: int = 0  # pages that plans hold, from the first on
    row_handed_over: bool = False  # and the metadata row, without which no request is complete
    hidden_bytes: int = 0

    def go(self, following: SendState) -> None:
        self.state = transition(self.state, following)

    @property
    def quiet(self) -> bool:
        return all(transfer.status().quiet for transfer in self.transfers.values())

    @property
    def reading(self) -> bool:
        """See ``PrefillMessenger.reading``. A transfer with an error will never be complete."""
        if self.state is SendState.FAILED and not self.row_handed_over:
            return False
        done = [transfer.status() for transfer in self.transfers.values()]
        return any(not status.quiet and not status.error for status in done)

    @property
    def bytes_moved(self) -> int:
        return sum(transfer.status().bytes_done for transfer in self.transfers.values())

    def sent(self) -> Sent:
        seconds = max((transfer.status().busy_ns for transfer in self.transfers.values()), default=0) / 1e9
        return Sent(self.bytes_moved, self.hidden_bytes, seconds)

    def release(self) -> None:
        for transfer in self.transfers.values():
            transfer.release()
