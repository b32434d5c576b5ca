"""The progress word: how far the forward pass is, one 64-bit number in memory that only ever grows.

The model's side stores it, the I/O thread watches it and posts what waits for it; nothing else passes between
the two. A GPU stores into the same memory with a kernel (docs/how-it-works.md).
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_pd_fabric.fabric._core import ffi, lib
from sglang_pd_fabric.fabric.errors import FabricError

if TYPE_CHECKING:
    from sglang_pd_fabric.fabric.engine import Engine

STEP_BITS: int = lib.SPF_STEP_BITS
MAX_STEPS = (1 << STEP_BITS) - 1
MAX_FORWARD = (1 << 64 - STEP_BITS) - 1


class Progress(NamedTuple):
    """A forward pass (counted from 1, never again the same) and how many of its steps are done."""

    forward: int
    steps: int


class ProgressWord:
    """An engine's progress word. Any thread may store; the word must not shrink."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine

    def store(self, forward: int, steps: int) -> None:
        """Shows progress. What waits for an earlier forward pass may be posted now too.

        Whatever this thread stored before is visible to the I/O thread; it is woken if it sleeps.

        Args:
            forward: number of the forward pass, at most ``MAX_FORWARD``.
            steps: steps of it that are done, at most ``MAX_STEPS``.

        Raises:
            FabricError: one of them does not fit the word.
        """
        if not (0 <= forward <= MAX_FORWARD and 0 <= steps <= MAX_STEPS):
            raise FabricError(f"forward pass {forward}, step {steps}: they do not fit the progress word")
        lib.spf_progress_store(self.engine.handle, forward << STEP_BITS | steps)

    def read(self) -> Progress:
        """What it shows now."""
        word = lib.spf_progress_read(self.engine.handle)
        return Progress(word >> STEP_BITS, word & MAX_STEPS)


class TraceEvent(NamedTuple):
    """Something that the I/O thread did.

    Attributes:
        ns: when, CLOCK_MONOTONIC.
        kind: ``step`` (the progress word was seen to have moved), ``post`` (a write was handed to the
            provider) or ``done`` (a write has ended well).
        forward, steps: the progress word, for ``step``.
        slot, generation, units, nbytes, nic: of the write, otherwise.
        after: the step that the last page of the write waited for.
    """

    ns: int
    kind: str
    forward: int
    steps: int
    slot: int
    generation: int
    units: int
    nbytes: int
    nic: int
    after: int


_KINDS = {lib.SPF_TRACE_STEP: "step", lib.SPF_TRACE_POST: "post", lib.SPF_TRACE_DONE: "done"}
_BATCH = 1024


def take_trace(handle: object) -> list[TraceEvent]:
    """Empties an engine's trace."""
    room = ffi.new("spf_trace_event[]", _BATCH)
    events: list[TraceEvent] = []
    while count := lib.spf_trace_take(handle, room, _BATCH):
        events += [_event(room[i]) for i in range(count)]
    return events


def _event(raw: Any) -> TraceEvent:
    immediate = raw.immediate
    return TraceEvent(
        ns=raw.ns,
        kind=_KINDS[raw.kind],
        forward=raw.progress >> STEP_BITS,
        steps=raw.progress & MAX_STEPS,
        slot=immediate >> lib.SPF_GENERATION_BITS + lib.SPF_UNIT_BITS,
        generation=immediate >> lib.SPF_UNIT_BITS & (1 << lib.SPF_GENERATION_BITS) - 1,
        units=immediate & (1 << lib.SPF_UNIT_BITS) - 1,
        nbytes=raw.bytes,
        nic=raw.nic,
        after=raw.after,
    )
