"""Completion slots of a decode rank: who owns which, and when one may be used again.

The core holds the counters (one word a slot: generation and units). This table hands slots out in the
order in which they came back, so that a generation's number returns as late as possible, and keeps the
slots of failed requests in quarantine until their writers are known to be quiet.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol


class Counters(Protocol):
    """What the table needs of the engine."""

    slot_count: int

    def slot_generation(self, slot: int) -> int: ...
    def slot_units(self, slot: int) -> int: ...
    def advance_slot(self, slot: int) -> int: ...


@dataclass(frozen=True)
class Slot:
    index: int
    generation: int


class NoFreeSlotError(RuntimeError):
    """More requests are in flight than there are completion slots."""


class SlotTable:
    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._free = deque(range(counters.slot_count))
        self._used: set[int] = set()
        self._quarantined: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return len(self._used)

    @property
    def quarantined(self) -> int:
        return len(self._quarantined)

    def take(self) -> Slot:
        """A slot with no units.

        Raises:
            NoFreeSlotError: all are in use or in quarantine.
        """
        if not self._free:
            raise NoFreeSlotError(
                f"all {self._counters.slot_count} completion slots are in use "
                f"({self.quarantined} of them in quarantine)"
            )
        index = self._free.popleft()
        self._used.add(index)
        return Slot(index, self._counters.slot_generation(index))

    def units(self, slot: Slot) -> int:
        """Units counted for it so far."""
        return self._counters.slot_units(slot.index)

    def give_back(self, slot: Slot) -> None:
        """Ends a slot whose writers are quiet: all units are in, or every writer has confirmed."""
        if slot.index in self._quarantined:
            self._quarantined.remove(slot.index)
        else:
            self._used.remove(slot.index)
            self._counters.advance_slot(slot.index)
        self._free.append(slot.index)

    def quarantine(self, slot: Slot) -> None:
        """Ends a slot whose writers may still write: what comes now counts as late."""
        self._used.remove(slot.index)
        self._quarantined.add(slot.index)
        self._counters.advance_slot(slot.index)
