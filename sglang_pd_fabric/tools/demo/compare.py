"""Judges answers against the reference: token for token, and log-probability for log-probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_pd_fabric.tools.demo.client import Answer
from sglang_pd_fabric.tools.demo.prompts import Question

# Another order of summation moves a log-probability of the tiny models by at most some 1e-4. One wrong token
# of 1,500, in one layer, moves at least one of an answer by 4e-2; a page of 16 moves all of them.
LOGPROB_TOLERANCE = 5e-3


@dataclass(frozen=True)
class Difference:
    """Why an answer is not the reference's."""

    question: Question
    reason: str

    def __str__(self) -> str:
        tokens = len(self.question.prompt)
        how = "stream" if self.question.stream else "whole"
        return f"{self.question.name} ({tokens} tokens, {self.question.door}, {how}): {self.reason}"


def difference(question: Question, expected: Answer, actual: Answer) -> Difference | None:
    """Return how `actual` differs, or None if it is the same answer."""
    reason = _reason(expected, actual)
    return Difference(question, reason) if reason else None


def _reason(expected: Answer, actual: Answer) -> str:
    if expected.error or actual.error:
        return f"failed: reference {expected.error or 'answered'}; cluster {actual.error or 'answered'}"
    if not expected.text:
        return "the reference's answer is empty"
    if expected.tokens != actual.tokens or expected.text != actual.text:
        place = next(
            (at for at, (one, two) in enumerate(zip(expected.text, actual.text, strict=False)) if one != two),
            min(len(expected.text), len(actual.text)),
        )
        return f"differs from token {place} on: expected {expected.text!r}, got {actual.text!r}"
    if expected.finish != actual.finish:
        return f"finished by {actual.finish!r}, expected {expected.finish!r}"
    return logprobs_reason(expected, actual)


def logprobs_reason(expected: Answer, actual: Answer, tolerance: float = LOGPROB_TOLERANCE) -> str:
    """How the log-probabilities differ; empty: they do not."""
    if len(expected.logprobs) != len(actual.logprobs):
        return f"{len(actual.logprobs)} log-probabilities, expected {len(expected.logprobs)}"
    for at, (one, two) in enumerate(zip(expected.logprobs, actual.logprobs, strict=True)):
        if abs(one - two) > tolerance:
            return f"same tokens, but token {at} has log-probability {two:.6f}, expected {one:.6f}"
    return ""


def largest_logprob_gap(expected: Sequence[Answer], actual: Sequence[Answer]) -> float:
    """Return by how much any log-probability is off: it shows how far from the tolerance the answers are."""
    pairs = zip(expected, actual, strict=True)
    gaps = (
        abs(one - two)
        for left, right in pairs
        for one, two in zip(left.logprobs, right.logprobs, strict=False)
    )
    return max(gaps, default=0.0)


def differences(
    questions: Sequence[Question], expected: Sequence[Answer], actual: Sequence[Answer]
) -> list[Difference]:
    """Return all differences, in the order of the questions."""
    found = (difference(*triple) for triple in zip(questions, expected, actual, strict=True))
    return [one for one in found if one is not None]
