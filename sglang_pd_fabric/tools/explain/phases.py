"""Time to first token as a sum of phases, each with the metric that it was measured by."""

from typing import NamedTuple

from sglang_pd_fabric.tools.explain.figures import STAGE, Figures, Timing

DECODE, PREFILL, SERVER = "decode", "prefill", "server"


class Phase(NamedTuple):
    """A part of the time to first token.

    Attributes:
        name: what the request does, or waits for.
        seconds: the mean for a request; None: not known.
        source: where it comes from, or what is missing.
    """

    name: str
    seconds: float | None
    source: str


QUEUE_PREFILL = "queue on prefill"
QUEUE_MEMORY = "queue on decode, for memory"
QUEUE_PLACE = "queue on decode, to run"
SCHEDULING = "scheduling"
BOOTSTRAP = "bootstrap"
FORWARD = "prefill"
TRANSFER = "exposed transfer"
HANDOVER = "hand-over noticed"
FIRST_STEP = "first decode step"
REST = "tokenization and delivery"
ROUTER = "router"
TTFT = "sglang:time_to_first_token_seconds"
# A request joins when the step that runs has ended; its own is handed out when the next has been launched.
FIRST_STEPS = 3
SAME = 0.8  # share of the requests that have to be streams for their mean to be compared with the others'


def phases(figures: Figures) -> list[Phase]:
    """The phases in the order in which a request goes through them.

    SGLang exports no time of tokenization or delivery; both are in what the measured stages leave over.
    """
    stages, prefill = figures.stages, figures.prefill
    queue = _phase(QUEUE_PREFILL, prefill.queue, "sglang:queue_time_seconds", PREFILL)
    forward = _phase(FORWARD, prefill.forward, f'{STAGE}{{stage="prefill_forward"}}', PREFILL)
    if not figures.disaggregated:
        measured = [
            _phase(SCHEDULING, stages.prepare, f'{STAGE}{{stage="request_process"}}', SERVER),
            queue._replace(name="queue", source=queue.source.replace(PREFILL, SERVER)),
            forward._replace(source=forward.source.replace("of prefill", "of server")),
        ]
        return [*measured, _rest(figures, measured)]
    exposed = _exposed(figures, queue, forward)
    measured = [
        _phase(SCHEDULING, stages.prepare, f'{STAGE}{{stage="decode_prepare"}}', DECODE),
        _phase(BOOTSTRAP, stages.handshake, "sglang:kv_transfer_bootstrap_ms", DECODE),
        _phase(QUEUE_MEMORY, stages.memory, "sglang:kv_transfer_alloc_ms", DECODE),
        queue,
        forward,
        exposed,
        _handover(stages.arrival, [queue, forward, exposed]),
        _phase(QUEUE_PLACE, stages.place, f'{STAGE}{{stage="decode_waiting"}}', DECODE),
        _phase(FIRST_STEP, stages.first_step, f'{STAGE}{{stage="fake_output"}}', DECODE),
    ]
    return [*measured, _rest(figures, measured), *_router(figures)]


def first_token(figures: Figures) -> Timing | None:
    """Time to first token, if it is of the same requests as the stages: SGLang knows it of streams."""
    ttft, staged = figures.answers.ttft, figures.prefill.forward or figures.stages.first_step
    return ttft if ttft and (staged is None or ttft.count >= SAME * staged.count) else None


def total(figures: Figures) -> float | None:
    """What shares are shares of: the time to first token, or else the sum of the phases measured."""
    ttft = first_token(figures)
    if ttft:
        return ttft.mean
    known = [phase.seconds for phase in phases(figures) if phase.seconds is not None]
    return sum(known) if known else None


def _phase(name: str, timing: Timing | None, source: str, role: str) -> Phase:
    if timing is None:
        return Phase(name, None, f"cannot tell: {source} of {role} has nothing of this window")
    return Phase(name, timing.mean, f"{source} of {role}")


def _exposed(figures: Figures, queue: Phase, forward: Phase) -> Phase:
    """What decode waited for. Prefill measures until it knows itself, which may be later."""
    name = f'{STAGE}{{stage="prefill_transfer_kv_cache"}}'
    exposed = _phase(TRANSFER, figures.prefill.exposed, name, PREFILL)
    arrival = figures.stages.arrival
    if None in (exposed.seconds, arrival, queue.seconds, forward.seconds):
        return exposed
    assert arrival is not None
    waited = max(0.0, arrival.mean - (queue.seconds or 0.0) - (forward.seconds or 0.0))
    if waited >= (exposed.seconds or 0.0):
        return exposed
    return exposed._replace(seconds=waited, source=f"{exposed.source}, as far as {DECODE} waited")


def first_steps(figures: Figures) -> float:
    """Seconds that decode's steps before a first token may take, where decode samples it."""
    gaps, share = figures.answers.gaps, figures.answers.first_sampled
    return FIRST_STEPS * gaps.mean * share if gaps and share else 0.0


def _handover(arrival: Timing | None, parts: list[Phase]) -> Phase:
    """What lies between decode's asking and all pages being there, and is none of prefill's stages."""
    name = f'{STAGE}{{stage="decode_transferred"}}'
    known = [part.seconds for part in parts if part.seconds is not None]
    if arrival is None or len(known) < len(parts):
        return Phase(HANDOVER, None, f"cannot tell: needs {name} of {DECODE} and the three before")
    return Phase(HANDOVER, max(0.0, arrival.mean - sum(known)), f"{name} of {DECODE} less the three before")


def _rest(figures: Figures, measured: list[Phase]) -> Phase:
    ttft = first_token(figures)
    missing = [phase.name for phase in measured if phase.seconds is None]
    if ttft is None:
        return Phase(REST, None, f'cannot tell: {TTFT}{{is_streaming="true"}} is not there for most requests')
    if missing:
        return Phase(REST, None, f"cannot tell without: {', '.join(missing)}")
    left = ttft.mean - sum(phase.seconds or 0.0 for phase in measured)
    source = f"{TTFT} less all of these; SGLang measures neither by itself"
    if steps := first_steps(figures):
        source += f". Decode's first step is in it: up to {FIRST_STEPS} of its steps, {steps * 1e3:.0f} ms"
    return Phase(REST, max(0.0, left), source)


def _router(figures: Figures) -> list[Phase]:
    ttft, outside = first_token(figures), figures.router_ttft
    if ttft is None or outside is None:
        return [
            Phase(ROUTER, None, "cannot tell: no smg_router_ttft_seconds (SGLang's mini balancer has none)")
        ]
    return [Phase(ROUTER, max(0.0, outside.mean - ttft.mean), f"smg_router_ttft_seconds less {TTFT}")]
