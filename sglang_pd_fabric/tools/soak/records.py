"""What happened in a soak: the faults that were injected, how each request ended, and what was wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from sglang_pd_fabric.tools.demo.client import Answer
from sglang_pd_fabric.tools.demo.prompts import Question

Fault = Literal["kill", "freeze"]
# How a client takes a request back: it hangs up, or posts to /abort_request of one side.
Retreat = Literal["hang up", "abort on prefill", "abort on decode"]
ROUTER = "router"


@dataclass(frozen=True)
class Ask:
    """One request before it is sent.

    Attributes:
        number: counts from 0.
        question: index of the question.
        answer_tokens: tokens to ask for, at most the reference's.
        door: "decode-N" (sent to prefill and to that decode), or "router".
        retreat: how it is taken back, if at all.
        after_s: seconds from the start of the request to the retreat.
    """

    number: int
    question: int
    answer_tokens: int
    stream: bool
    door: str
    retreat: Retreat | None = None
    after_s: float = 0.0

    def as_question(self, questions: list[Question]) -> Question:
        """What to send. Log-probabilities only where one server's answer comes back as it is."""
        from dataclasses import replace

        whole = questions[self.question]
        return replace(
            whole, answer_tokens=self.answer_tokens, stream=self.stream, logprobs=self.door != ROUTER
        )


@dataclass(frozen=True)
class Injection:
    """A fault that is to happen.

    Attributes:
        at_s: seconds since the traffic began.
        target: name of the server.
        seconds: kill: how long it stays away before it is started again; freeze: how long it stands still.
        again_s: kill: so long after its start it is killed a second time; None: it is not.
    """

    at_s: float
    fault: Fault
    target: str
    seconds: float
    again_s: float | None = None


@dataclass
class Event:
    """A fault that happened. `until_s`: the server serves again (after a kill), or runs again."""

    fault: Fault
    target: str
    at_s: float
    until_s: float | None = None

    def __str__(self) -> str:
        end = "goes on" if self.until_s is None else f"until {self.until_s:.1f} s"
        return f"{self.at_s:7.1f} s  {self.fault} {self.target}, {end}"


class Ending(Enum):
    """How a request ended."""

    EQUAL = "equal"
    TAKEN_BACK = "taken back"  # by its own client, before it was complete
    ERROR = "error"  # a stated one
    SUSPECT = "suspect"  # it is not what the reference says; until transformers has judged it
    WRONG = "wrong"
    EMPTY = "empty"  # 200, and neither an answer nor a reason
    HUNG = "hung"


@dataclass(frozen=True)
class Outcome:
    """A request that has ended, or was given up.

    Attributes:
        answer: what came back, of a suspect.
        taken_back: its client had taken it back before it ended; of a suspect.
    """

    ask: Ask
    began_s: float
    ended_s: float
    ending: Ending
    reason: str = ""
    answer: Answer = field(default_factory=Answer)
    taken_back: bool = False


@dataclass(frozen=True)
class Rounding:
    """An answer that is not the reference's, but one of those that transformers gives too.

    Attributes:
        question: index of the question.
        reason: how it differs from the reference.
        from_reference: largest difference of a log-probability, up to where the tokens differ.
        from_transformers: the same, from the nearest way at each token.
    """

    question: int
    reason: str
    from_reference: float
    from_transformers: float


@dataclass(frozen=True)
class Violation:
    """Something that must not happen, and when it was seen."""

    kind: str
    at_s: float
    what: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_s:.1f} s: {self.what}"
