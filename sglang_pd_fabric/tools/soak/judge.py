"""Says what must not have happened. Pure: it takes observations and starts nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sglang_pd_fabric.tools.demo.client import Answer
from sglang_pd_fabric.tools.demo.compare import logprobs_reason
from sglang_pd_fabric.tools.soak.records import ROUTER, Ask, Ending, Event, Outcome

# What is further from the reference is suspect: transformers judges it once the traffic is over
# (`second_opinion`). Among so many random prompts there are some on which a tiny model chooses its experts
# within a rounding error: of some 320, transformers' own eager and sdpa attention are 0.0152, 0.0264 and
# 0.285 apart on three, and its chunks of one prompt 0.053 on a fourth; servers gave just these values. All
# others are within 2e-4. One wrong token of 1,500 moves an answer by 0.04 (demo/compare.py).
LOGPROB_TOLERANCE = 0.01
# Where the reference's second choice is no further behind, rounding may prefer it: of 66 ways to cut one
# prompt of 1,296 tokens into chunks, transformers prefers in one a token that is 0.0128 behind in all others.
TIE = 0.05
# A request that nothing happens to has so long: two busy cores, with other servers starting beside it.
ANSWER_S = 60.0
# What a fault may add: until a dead peer is noticed and told of, or a frozen one is given up (10 s).
KILL_S = 15.0
FREEZE_S = 15.0
# So long after a fault has passed, an error may still be its.
ECHO_S = 20.0


def verdict(
    ask: Ask, right: Answer, answer: Answer, *, taken_back: bool, rounding: bool = False
) -> tuple[Ending, str]:
    """How a request has ended, with the reason where it is not the right answer, or with a tie where it is.

    Behind a tie that was decided the other way the answer is another one, and not looked at.

    Args:
        right: the reference's answer, at least as long as what was asked for.
        answer: what came back; with an error, what had come until then.
        taken_back: its client had hung up, or had asked for an abort, before it ended.
        rounding: tokens and log-probabilities are known to be the model's, and are not compared.
    """
    if broken := _malformed(ask, answer):
        return Ending.WRONG, broken
    tie = None if rounding else _tie(ask, right, answer)
    if not rounding and (differs := _differs(ask, right, answer if tie is None else _beginning(answer, tie))):
        return Ending.SUSPECT, differs
    if answer.error:
        return _failed(ask, answer, taken_back=taken_back)
    if not answer.tokens:
        return Ending.EMPTY, f"200, finished by {answer.finish!r}: no token"
    if len(answer.tokens) < ask.answer_tokens or answer.finish != "length":
        many = f"{len(answer.tokens)} tokens of {ask.answer_tokens}"
        return Ending.WRONG, f"{many}, finished by {answer.finish!r}"
    return Ending.EQUAL, "" if tie is None else f"token {tie} is the reference's second choice, by a tie"


def _malformed(ask: Ask, answer: Answer) -> str:
    """What no rounding explains."""
    if len(answer.tokens) > ask.answer_tokens:
        return f"{len(answer.tokens)} tokens of {ask.answer_tokens}"
    if answer.logprobs and len(answer.logprobs) != len(answer.tokens):
        return f"{len(answer.logprobs)} log-probabilities of {len(answer.tokens)} tokens"
    return ""


def _failed(ask: Ask, answer: Answer, *, taken_back: bool) -> tuple[Ending, str]:
    """The ending of an answer with an error."""
    if taken_back:
        return Ending.TAKEN_BACK, answer.error
    if ask.stream or answer.finish != "abort":
        return Ending.ERROR, answer.error
    return Ending.EMPTY, f"200, finished by 'abort': {answer.error}"


def _tie(ask: Ask, right: Answer, answer: Answer) -> int | None:
    """Where the answer first differs, if rounding may have decided there."""
    pairs = zip(answer.tokens[: ask.answer_tokens], right.tokens, right.runners_up, strict=False)
    for at, (token, best, (second, behind)) in enumerate(pairs):
        if token != best:
            return at if token == second and behind < TIE else None
    return None


def _beginning(answer: Answer, length: int) -> Answer:
    return replace(answer, tokens=answer.tokens[:length], logprobs=answer.logprobs[:length])


def _differs(ask: Ask, right: Answer, answer: Answer) -> str:
    """How that which came, be it all or the beginning, differs from the reference."""
    expected = right.tokens[: ask.answer_tokens]
    tokens = answer.tokens
    if tokens != expected[: len(tokens)]:
        at = next(i for i, token in enumerate(tokens) if expected[i : i + 1] != (token,))
        return f"token {at} of {ask.answer_tokens} differs: {tokens[at:][:8]}, not {expected[at:][:8]}"
    if not answer.logprobs:
        return ""
    right = replace(right, logprobs=right.logprobs[: len(tokens)])
    return logprobs_reason(right, answer, LOGPROB_TOLERANCE)


def largest_gap(right: Answer, answer: Answer) -> float:
    """How far log-probabilities are from the reference's at most, up to where the tokens differ."""
    largest = 0.0
    tokens = zip(answer.tokens, right.tokens, strict=False)
    logprobs = zip(answer.logprobs, right.logprobs, strict=False)
    for (token, other), (one, two) in zip(tokens, logprobs, strict=False):
        if token != other:
            break
        largest = max(largest, abs(one - two))
    return largest


def concerns(event: Event, door: str) -> bool:
    """Whether a fault can touch a request at that door."""
    return door in (ROUTER, event.target) or event.target.startswith("prefill")


def limit_s(door: str, began_s: float, now_s: float, events: Iterable[Event]) -> float:
    """When a request that is still under way has hung, in seconds since the traffic began.

    It has `ANSWER_S`, and for each fault that it met the time of the fault and its notice.
    """
    limit = began_s + ANSWER_S
    for event in events:
        until = now_s if event.until_s is None else event.until_s
        if concerns(event, door) and until + ECHO_S >= began_s and event.at_s <= now_s:
            overlap = max(0.0, until - max(event.at_s, began_s))
            limit += overlap + (KILL_S if event.fault == "kill" else FREEZE_S)
    return limit


def unprovoked(outcome: Outcome, events: Iterable[Event]) -> bool:
    """Whether a request failed though no fault was near it."""
    return outcome.ending is Ending.ERROR and undisturbed(outcome, events)


def undisturbed(outcome: Outcome, events: Iterable[Event]) -> bool:
    """Whether no fault was near a request: an error of it has no excuse."""
    return not any(
        concerns(event, outcome.ask.door)
        and event.at_s <= outcome.ended_s
        and (event.until_s is None or event.until_s + ECHO_S >= outcome.began_s)
        for event in events
    )


def detection(event: Event, outcomes: Iterable[Outcome]) -> tuple[int, list[float]]:
    """What became of the requests that were under way to a server when it was killed or froze.

    Returns:
        How many got their answer all the same, and the seconds from the fault to each error.
    """
    equal, errors = 0, []
    for outcome in outcomes:
        door = outcome.ask.door
        if door == ROUTER or not outcome.began_s < event.at_s < outcome.ended_s or not concerns(event, door):
            continue
        if outcome.ending is Ending.EQUAL:
            equal += 1
        elif outcome.ending is Ending.ERROR:
            errors.append(outcome.ended_s - event.at_s)
    return equal, sorted(errors)


def counts(outcomes: Sequence[Outcome]) -> Counter[str]:
    """How many requests ended how."""
    return Counter(outcome.ending.value for outcome in outcomes)
