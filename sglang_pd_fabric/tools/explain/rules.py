"""From numbers to verdicts. Pure: no clock, no network, no state.

A phase is called slow only by its own measurement: one that waits (a queue, the bootstrap, the exposed
transfer) when it takes a good part of the time to first token; prefill's passes, which are the work itself,
only when the servers have no time left, or a goal was given and is missed.
"""

from dataclasses import dataclass
from enum import Enum

from sglang_pd_fabric.tools.explain import phases as ph
from sglang_pd_fabric.tools.explain.figures import IDLE, LONG_GAP, STAGE, TOKENS, Figures

WAIT_SHARE = 0.25  # of the time to first token, from which on a wait is named
WAIT_SECONDS = 0.010  # and this much at least: below it, polling and clocks are the larger part
WORK_SHARE = 0.5  # of the time to first token, from which on the work itself is what it consists of
BUSY = 0.85  # share of time from which on a scheduler has none left
FULL = 0.9  # share of a KV pool
LONG_SHARE = 0.1  # of the time of streams in long gaps, from which on they were interrupted


class Kind(Enum):
    """What a verdict is about."""

    NO_TRAFFIC = "no traffic"
    CANNOT_TELL = "cannot tell"
    QUEUE_PREFILL = "queue on prefill"
    QUEUE_DECODE = "queue on decode"
    BOOTSTRAP = "bootstrap"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    HANDOVER = "hand-over"
    FIRST_STEP = "first decode step"
    DELIVERY = "tokenization or delivery"
    INTERRUPTED = "streams interrupted"
    DECODE_MEMORY = "decode's memory"
    DECODE_STEP = "decode's steps"
    FAILURES = "failures"
    NOTHING = "nothing wrong"


@dataclass(frozen=True)
class Verdict:
    """Which phase is slow, and the measurement behind it."""

    kind: Kind
    text: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Goals:
    """What the operator wants, in seconds; None: not said."""

    ttft: float | None = None
    tpot: float | None = None


def judge(figures: Figures, goals: Goals | None = None) -> list[Verdict]:
    """All verdicts, the most important first. At least one."""
    goals = goals or Goals()
    failed = _failures(figures)
    if _silent(figures):
        stuck = _stuck(figures)
        if stuck or failed:
            return [*stuck, *failed]
        seconds = f"{figures.seconds:.0f} s"
        return [Verdict(Kind.NO_TRAFFIC, f"no request had its first token or ended in these {seconds}")]
    first, later = _first_token(figures, goals), _later_tokens(figures, goals)
    slow = [each for each in (*first, *later) if each.kind is not Kind.CANNOT_TELL]
    # Prefill's passes are the work itself: what waits, or is interrupted by them, is what a user feels.
    slow.sort(key=lambda each: each.kind is Kind.PREFILL)
    unknown = [each for each in (*first, *later) if each.kind is Kind.CANNOT_TELL]
    if slow or failed or unknown:
        return [*slow, *failed, *unknown]
    return [Verdict(Kind.NOTHING, "no phase waits for another and streams flow", _healthy(figures))]


def _silent(figures: Figures) -> bool:
    answers = figures.answers
    return not answers.requests and not answers.tokens and answers.ttft is None and answers.gaps is None


def _stuck(figures: Figures) -> list[Verdict]:
    """Requests stand in queues and none comes out: no histogram has them yet."""
    waiting = figures.waiting
    at_decode = (waiting.prealloc or 0.0) + (waiting.decode or 0.0)
    rows = [
        (waiting.prefill or 0.0, Kind.QUEUE_PREFILL, "wait on prefill for a forward pass"),
        (at_decode, Kind.QUEUE_DECODE, "wait on decode for memory or a place in the batch"),
        (waiting.inflight or 0.0, Kind.TRANSFER, "are computed, and wait on prefill for their transfer"),
        (0.0 if at_decode else waiting.bootstrap or 0.0, Kind.BOOTSTRAP, "wait on prefill for decode's pull"),
    ]
    found = sorted((row for row in rows if row[0]), key=lambda row: -row[0])
    return [
        Verdict(kind, f"nothing comes out: {count:.0f} requests {what}", ("gauges of the second reading",))
        for count, kind, what in found
    ]


def _failures(figures: Figures) -> list[Verdict]:
    if not figures.prefill.failed:
        return []
    text = f"{figures.prefill.failed:.0f} times a request failed in bootstrap or transfer"
    where = "sglang:num_bootstrap_failed_reqs_total, sglang:num_transfer_failed_reqs_total of both sides"
    return [
        Verdict(Kind.FAILURES, text, (where, "the servers' logs and the clients' errors have the reason"))
    ]


def _first_token(figures: Figures, goals: Goals) -> list[Verdict]:
    whole = ph.total(figures)
    parts = {phase.name: phase for phase in ph.phases(figures)}
    if whole is None:
        return [Verdict(Kind.CANNOT_TELL, "no phase of the first token was measured", _missing(parts))]
    waits = sorted(
        (phase for phase in parts.values() if phase.name in _WAITS and _long(_waited(phase, figures), whole)),
        key=lambda phase: -(phase.seconds or 0.0),
    )
    found = [_wait(phase, whole, figures) for phase in waits]
    forward = parts[ph.FORWARD].seconds
    if forward is not None and forward >= WORK_SHARE * whole:
        found += _work(figures, forward, whole, goals, waits=bool(waits))
    if not found and (missing := _missing(parts)):
        found.append(Verdict(Kind.CANNOT_TELL, "some phases of the first token were not measured", missing))
    return found


def _missing(parts: dict[str, ph.Phase]) -> tuple[str, ...]:
    """What would have to be known; a router is no part of the servers."""
    return tuple(
        f"{phase.name}: {phase.source.removeprefix('cannot tell: ')}"
        for phase in parts.values()
        if phase.seconds is None and phase.name != ph.ROUTER
    )


_WAITS = {
    "queue": Kind.QUEUE_PREFILL,
    ph.QUEUE_PREFILL: Kind.QUEUE_PREFILL,
    ph.QUEUE_MEMORY: Kind.QUEUE_DECODE,
    ph.QUEUE_PLACE: Kind.QUEUE_DECODE,
    ph.SCHEDULING: Kind.BOOTSTRAP,
    ph.BOOTSTRAP: Kind.BOOTSTRAP,
    ph.TRANSFER: Kind.TRANSFER,
    ph.HANDOVER: Kind.HANDOVER,
    ph.FIRST_STEP: Kind.FIRST_STEP,
    ph.REST: Kind.DELIVERY,
    ph.ROUTER: Kind.DELIVERY,
}


def _waited(phase: ph.Phase, figures: Figures) -> float | None:
    """Decode's first step is work, and nobody waits in it."""
    if phase.name != ph.REST or phase.seconds is None:
        return phase.seconds
    return phase.seconds - ph.first_steps(figures)


def _long(seconds: float | None, whole: float) -> bool:
    return seconds is not None and seconds >= WAIT_SECONDS and seconds >= WAIT_SHARE * whole


def _wait(phase: ph.Phase, whole: float, figures: Figures) -> Verdict:
    kind, seconds = _WAITS[phase.name], phase.seconds or 0.0
    text = f"{phase.name}: {seconds * 1e3:.0f} ms of {whole * 1e3:.0f} ms to the first token"
    waiting, answers = figures.waiting, figures.answers
    more: list[str] = []
    if kind is Kind.QUEUE_PREFILL:
        more = [_busy("schedulers that prefill", figures.prefill.busy), _depth("now wait", waiting.prefill)]
    elif kind is Kind.QUEUE_DECODE:
        more = [
            _depth("now wait for memory", waiting.prealloc),
            _depth("now wait to run", waiting.decode),
            "a place needs pages, --num-reserved-decode-tokens more, and one of --max-running-requests",
            f"the fullest KV pool was used to {answers.memory_used:.0%} at the second reading"
            if answers.memory_used is not None
            else "",
        ]
    elif kind is Kind.HANDOVER:
        more = [
            "a scheduler notices pulls and full requests once an iteration",
            _busy("decode's schedulers", answers.busy),
        ]
    elif kind is Kind.TRANSFER:
        more = [*transfer(figures), _depth("are computed and not yet over", waiting.inflight)]
    return Verdict(kind, text, (phase.source, *(line for line in more if line)))


def _work(figures: Figures, forward: float, whole: float, goals: Goals, *, waits: bool) -> list[Verdict]:
    """The forward passes are most of it. That alone is how it should be."""
    busy = figures.prefill.busy
    facts = [f'{STAGE}{{stage="prefill_forward"}}', _busy("schedulers that prefill", busy), speed(figures)]
    evidence = tuple(fact for fact in facts if fact)
    of = f"{forward * 1e3:.0f} ms of {whole * 1e3:.0f} ms to the first token are forward passes"
    if busy is None:
        why = f"cannot tell whether prefill has time left: {IDLE} is missing; {of}"
        return [Verdict(Kind.CANNOT_TELL, why, evidence)]
    if busy >= BUSY:
        return [Verdict(Kind.PREFILL, f"prefill is bound by its compute: {of}, no time is left", evidence)]
    if goals.ttft is not None and whole > goals.ttft and not waits:
        text = f"prefill: {of}, the goal is {goals.ttft * 1e3:.0f} ms, and nothing else waits"
        return [Verdict(Kind.PREFILL, text, evidence)]
    return []


def _later_tokens(figures: Figures, goals: Goals) -> list[Verdict]:
    answers, gaps = figures.answers, figures.answers.gaps
    found = []
    if answers.retracted or (answers.memory_used or 0.0) >= FULL:
        facts = (f"{answers.retracted or 0:.0f} requests were retracted", *history(figures))
        text = (
            f"decode's KV memory is full: {answers.memory_used or 0:.0%} used; fewer or shorter requests fit"
        )
        found.append(Verdict(Kind.DECODE_MEMORY, text, facts))
    if gaps is None:
        if answers.tokens or answers.requests:
            name = "sglang:inter_token_latency_seconds has nothing of this window"
            return [
                *found,
                Verdict(Kind.CANNOT_TELL, "nothing about later tokens", (name, "did any stream?")),
            ]
        return found
    if gaps.long_share >= LONG_SHARE and gaps.p99 >= LONG_GAP * gaps.p50:
        found.append(_interrupted(figures))
    if goals.tpot is not None and gaps.p50 > goals.tpot:
        text = (
            f"a step of decode takes {gaps.p50 * 1e3:.1f} ms (median), the goal is {goals.tpot * 1e3:.1f} ms"
        )
        found.append(Verdict(Kind.DECODE_STEP, text, (_busy("decode", answers.busy), *history(figures))))
    return found


def _interrupted(figures: Figures) -> Verdict:
    answers, gaps, prefill = figures.answers, figures.answers.gaps, figures.prefill
    assert gaps is not None
    what = f"{gaps.long_share:.0%} of the time of streams is gaps above {LONG_GAP:.0f} medians"
    facts = (f"between tokens: median {gaps.p50 * 1e3:.1f} ms, 99 % {gaps.p99 * 1e3:.1f} ms",)
    if answers.prompt_tokens:
        cause = (
            f"the servers that generate computed {answers.prompt_tokens:.0f} prompt tokens in between "
            f'({TOKENS}{{mode="prefill_compute"}})'
        )
        text = f"streams are interrupted by new prompts: {what}"
        return Verdict(Kind.INTERRUPTED, text, (*facts, cause))
    worked = 1.0 if prefill.busy is None else prefill.busy
    if figures.shared_host and prefill.tokens and worked >= gaps.long_share:
        cause = (
            f"prefill, on the same host, computed {prefill.tokens:.0f} prompt tokens in between; "
            "decode computed none. Whether they share cores or a GPU no metric says"
        )
        text = f"streams are interrupted, most likely by prompts on the same host: {what}"
        return Verdict(Kind.INTERRUPTED, text, (*facts, cause, _busy("prefill", prefill.busy)))
    why = f"had work only {worked:.0%} of the time" if prefill.tokens else "computed none either"
    if not figures.shared_host:
        why = "is on another host"
    cause = f"decode computed no prompt, and prefill {why}; look at the host, and at decode's log"
    return Verdict(
        Kind.CANNOT_TELL, f"streams are interrupted, by what cannot be told: {what}", (*facts, cause)
    )


def _healthy(figures: Figures) -> tuple[str, ...]:
    whole, gaps = ph.total(figures), figures.answers.gaps
    facts = [f"time to first token {whole * 1e3:.0f} ms" if whole is not None else "", speed(figures)]
    if gaps is not None:
        facts.append(f"between tokens: median {gaps.p50 * 1e3:.1f} ms, 99 % {gaps.p99 * 1e3:.1f} ms")
    return tuple(fact for fact in facts if fact)


def _busy(who: str, share: float | None) -> str:
    if share is None:
        return f"how busy {who} are: cannot tell, {IDLE} is missing"
    return f"{who} had work {share:.0%} of the time ({IDLE})"


def _depth(what: str, count: float | None) -> str:
    return "" if count is None else f"{count:.0f} requests {what}"


def speed(figures: Figures) -> str:
    """How long a prompt token takes in forward passes."""
    forward, tokens = figures.prefill.forward, figures.prefill.tokens
    if forward is None or not tokens:
        return ""
    each = tokens / forward.count
    return (
        f"{each:.0f} prompt tokens a request were computed, {forward.mean / each * 1e3:.3f} ms each "
        f"({each / forward.mean:.0f} tokens/s within a request)"
    )


def history(figures: Figures) -> tuple[str, ...]:
    """What later tokens have to read."""
    answers = figures.answers
    lines = []
    if answers.running and answers.history is not None:
        each = answers.history / answers.running
        lines.append(f"{answers.running:.0f} requests run, with {each:.0f} tokens of history each")
    if answers.read_bytes:
        lines.append(f"a GPU reads about {answers.read_bytes / figures.seconds / 1e9:.1f} GB/s")
    else:
        lines.append("KV traffic: cannot tell, SGLang estimates it with --enable-mfu-metrics")
    return tuple(lines)


def transfer(figures: Figures) -> list[str]:
    """How much was moved, how fast, and how much of it nobody waited for."""
    moved = figures.moved
    lines = []
    if moved.bytes and moved.seconds:
        rate = moved.bytes / moved.seconds
        speed = f"{rate / 1e9:.3f} GB/s" if rate >= 1e8 else f"{rate / 1e6:.1f} MB/s"
        lines.append(f"{moved.bytes / 1e6:.1f} MB in {moved.requests or 0:.0f} requests, {speed} each")
    elif moved.requests == 0 or moved.requests is None:
        lines.append("cannot tell how much was moved: sglang:kv_transfer_total_mb has nothing of this window")
    if moved.bytes and moved.hidden_bytes is not None:
        lines.append(
            f"{moved.hidden_bytes / moved.bytes:.0%} had been written when the last forward pass ended "
            "(over tcp: into a socket)"
        )
    if moved.pages and moved.writes:
        lines.append(f"{moved.pages / moved.writes:.1f} pieces of pages a write, {moved.writes:.0f} writes")
    return lines
