"""The numbers that the verdicts are made of, taken from the pages of all servers of a deployment."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sglang_pd_fabric.tools.explain.page import Histogram, Window

STAGE = "sglang:per_stage_req_latency_seconds"
IDLE = "sglang:scheduler_idle_seconds_total"
TOKENS = "sglang:realtime_tokens_total"
# A gap between tokens is long when it is so many times the median one.
LONG_GAP = 4.0


@dataclass(frozen=True)
class Timing:
    """Seconds that requests spent in something: the mean, and how many requests that is of."""

    mean: float
    count: float


@dataclass(frozen=True)
class Gaps:
    """Seconds from one token of a stream to the next.

    Attributes:
        count: tokens.
        mean, p50, p99: seconds.
        long_share: of all the time that streams took, what lies in gaps above ``LONG_GAP`` medians.
    """

    count: float
    mean: float
    p50: float
    p99: float
    long_share: float


@dataclass(frozen=True)
class Waiting:
    """Requests in SGLang's queues at the second reading; None: not exported.

    Attributes:
        bootstrap: on prefill, for decode's pull.
        prefill: on prefill, for a forward pass.
        inflight: on prefill, computed, for the end of their transfer.
        prealloc: on decode, for memory.
        transfer: on decode, for prefill's pages.
        decode: on decode, for a place among those that run.
    """

    bootstrap: float | None = None
    prefill: float | None = None
    inflight: float | None = None
    prealloc: float | None = None
    transfer: float | None = None
    decode: float | None = None


@dataclass(frozen=True)
class Moved:
    """Transfers that ended in the window.

    Attributes:
        requests: how many requests' (SGLang's count).
        bytes, hidden_bytes, pages, writes: our counters; hidden is what had been written with the last pass.
        seconds: in which something of a request was under way, summed over requests.
    """

    requests: float | None = None
    bytes: float | None = None
    hidden_bytes: float | None = None
    pages: float | None = None
    writes: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Answers:
    """What the servers that answer clients say: decode, or ordinary ones.

    Attributes:
        requests: that ended.
        ttft: of streamed requests. Of others SGLang notes the first batch of output instead.
        gaps: between tokens of streams.
        busy: share of the window in which schedulers had work.
        tokens: that were generated.
        prompt_tokens: of prompts, computed by these servers.
        running, history: requests that run at the second reading, and their tokens, prompts included.
        memory_used: the fullest KV pool, as a share.
        read_bytes: that a GPU read, by SGLang's estimate (``--enable-mfu-metrics``).
        retracted: requests thrown out of the batch for want of memory.
        first_sampled: share of the requests whose first token decode samples (our counter).
    """

    requests: float | None = None
    ttft: Timing | None = None
    gaps: Gaps | None = None
    busy: float | None = None
    tokens: float | None = None
    prompt_tokens: float | None = None
    running: float | None = None
    history: float | None = None
    memory_used: float | None = None
    read_bytes: float | None = None
    retracted: float | None = None
    first_sampled: float | None = None


@dataclass(frozen=True)
class Prefill:
    """What the servers say that compute prompts.

    Attributes:
        queue: waited for a forward pass.
        forward: was in forward passes, from the first chunk's beginning to the last one's end.
        exposed: from the last pass to the end of the transfer.
        busy: share of the window in which schedulers had work, and not more than what passes of prompts fill.
        tokens: of prompts, without those from the prefix cache.
        failed: requests that failed in hand-shake or transfer, on either side.
    """

    queue: Timing | None = None
    forward: Timing | None = None
    exposed: Timing | None = None
    busy: float | None = None
    tokens: float | None = None
    failed: float | None = None


@dataclass(frozen=True)
class Stages:
    """Stages of a request on decode.

    Attributes:
        prepare: until it stands in the queue for memory.
        handshake: until prefill's ranks are known.
        memory: until it has pages.
        arrival: until they are filled: prefill's queue, its passes and the rest of the transfer are in it.
        place: until it is in the running batch.
        first_step: until the first token is handed out.
    """

    prepare: Timing | None = None
    handshake: Timing | None = None
    memory: Timing | None = None
    arrival: Timing | None = None
    place: Timing | None = None
    first_step: Timing | None = None


@dataclass(frozen=True)
class Figures:
    """What two readings say. None: no server exports it, or nothing of it was observed.

    Attributes:
        seconds: the window.
        disaggregated: prefill and decode are servers of their own.
        shared_host: a prefill and a decode server have the same host name.
        router_ttft: time to first token as a router sees it.
    """

    seconds: float
    disaggregated: bool = True
    shared_host: bool = False
    router_ttft: Timing | None = None
    answers: Answers = field(default_factory=Answers)
    prefill: Prefill = field(default_factory=Prefill)
    stages: Stages = field(default_factory=Stages)
    waiting: Waiting = field(default_factory=Waiting)
    moved: Moved = field(default_factory=Moved)


def of_cluster(prefill: Window, decode: Window, router: Window, *, shared_host: bool) -> Figures:
    """Figures of servers with ``--disaggregation-mode`` prefill and decode."""
    failed = (
        window.change(f"sglang:num_{what}_failed_reqs_total")
        for window in (prefill, decode)
        for what in ("bootstrap", "transfer")
    )
    return Figures(
        decode.seconds,
        shared_host=shared_host,
        router_ttft=_timing(router.histogram("smg_router_ttft_seconds")),
        answers=_answers(decode),
        prefill=replace(_prefill(prefill), failed=_sum(failed)),
        stages=Stages(
            _stage(decode, "decode_prepare"),
            _timing(decode.histogram("sglang:kv_transfer_bootstrap_ms"), 1000),
            _timing(decode.histogram("sglang:kv_transfer_alloc_ms"), 1000),
            _stage(decode, "decode_transferred"),
            _stage(decode, "decode_waiting"),
            _stage(decode, "fake_output"),
        ),
        waiting=Waiting(
            prefill.gauge("sglang:num_prefill_bootstrap_queue_reqs"),
            prefill.gauge("sglang:num_queue_reqs"),
            prefill.gauge("sglang:num_prefill_inflight_queue_reqs"),
            decode.gauge("sglang:num_decode_prealloc_queue_reqs"),
            decode.gauge("sglang:num_decode_transfer_queue_reqs"),
            decode.gauge("sglang:num_queue_reqs"),
        ),
        moved=_moved(prefill),
    )


def of_ordinary(servers: Window) -> Figures:
    """Figures of servers that compute prompts and generate."""
    return Figures(
        servers.seconds,
        disaggregated=False,
        answers=_answers(servers),
        prefill=_prefill(servers),
        stages=Stages(prepare=_stage(servers, "request_process")),
        waiting=Waiting(prefill=servers.gauge("sglang:num_queue_reqs")),
    )


def _answers(window: Window) -> Answers:
    return Answers(
        window.change("sglang:num_requests_total"),
        _timing(window.histogram("sglang:time_to_first_token_seconds", is_streaming="true")),
        _gaps(window.histogram("sglang:inter_token_latency_seconds")),
        _busy(window),
        window.change(TOKENS, mode="decode"),
        window.change(TOKENS, mode="prefill_compute"),
        window.gauge("sglang:num_running_reqs"),
        window.gauge("sglang:decode_sum_seq_lens"),
        window.largest("sglang:token_usage"),
        window.change("sglang:estimated_read_bytes_per_gpu_total"),
        window.change("sglang:num_retracted_requests_total"),
        _share(window, "sglang_pd_fabric:first_token_total", mode="decode"),
    )


def _prefill(window: Window) -> Prefill:
    return Prefill(
        _timing(window.histogram("sglang:queue_time_seconds")),
        _stage(window, "prefill_forward"),
        _stage(window, "prefill_transfer_kv_cache"),
        _busy(window, _stage(window, "prefill_forward")),
        window.change(TOKENS, mode="prefill_compute"),
    )


def _stage(window: Window, stage: str) -> Timing | None:
    return _timing(window.histogram(STAGE, stage=stage))


def _timing(histogram: Histogram | None, per_second: float = 1.0) -> Timing | None:
    return Timing(histogram.mean / per_second, histogram.count) if histogram else None


def _gaps(histogram: Histogram | None) -> Gaps | None:
    if histogram is None:
        return None
    p50 = histogram.quantile(0.5)
    long = min(1.0, histogram.seconds_above(LONG_GAP * p50) / histogram.total) if histogram.total else 0.0
    return Gaps(histogram.count, histogram.mean, p50, histogram.quantile(0.99), long)


def _share(window: Window, name: str, **labels: str) -> float | None:
    """Which part of what a counter counted has these labels."""
    all_of_them = window.change(name)
    return (window.change(name, **labels) or 0.0) / all_of_them if all_of_them else None


def _busy(window: Window, work: Timing | None = None) -> float | None:
    """The share of time that schedulers had work; of a certain work only, if that is less."""
    idle = window.change(IDLE)
    if idle is None:
        return None
    time = window.seconds * window.ranks(IDLE)
    return max(0.0, min(1 - idle / time, work.mean * work.count / time if work else 1.0))


def _moved(prefill: Window) -> Moved:
    sizes = prefill.histogram("sglang:kv_transfer_total_mb")
    busy = prefill.histogram("sglang:kv_transfer_latency_ms")
    return Moved(
        sizes.count if sizes else None,
        prefill.change("sglang_pd_fabric:sent_bytes_total"),
        prefill.change("sglang_pd_fabric:hidden_bytes_total"),
        prefill.change("sglang_pd_fabric:sent_pages_total"),
        prefill.change("sglang_pd_fabric:sent_writes_total"),
        busy.total / 1000 if busy else None,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
