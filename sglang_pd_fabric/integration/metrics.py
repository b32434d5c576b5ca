"""Our own metrics on the server's ``/metrics`` page, beside SGLang's. ``DESCRIPTORS`` is the whole list.

Counters grow when a request begins or ends and when the control thread ticks; nothing is done for a page or a
write. Imported in scheduler processes only: prometheus_client asks when it is imported where processes put
their samples, and SGLang's main process says that late.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from prometheus_client import Counter, Gauge

from sglang_pd_fabric.fabric.records import EngineStats
from sglang_pd_fabric.messenger.rooms import Sent
from sglang_pd_fabric.messenger.seal import Dropped
from sglang_pd_fabric.messenger.states import FirstToken, Held

PREFIX = "sglang_pd_fabric:"


class Descriptor(NamedTuple):
    """One metric. Each is the sum over the ranks of a server.

    Attributes:
        name: without ``PREFIX``; a counter's name ends in ``_total`` on the page.
        kind: whether it only grows.
        unit: of its value.
        side: which servers have values in it.
        text: what it means.
        labels: what it is divided by.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    side: Literal["prefill", "decode", "both"]
    text: str
    labels: tuple[str, ...] = ()

    @property
    def exported(self) -> str:
        """Its name on the page."""
        return f"{PREFIX}{self.name}{'_total' * (self.kind == 'counter')}"


DESCRIPTORS = (
    Descriptor("sent_requests", "counter", "requests", "prefill", "Requests whose transfer has finished"),
    Descriptor("sent_bytes", "counter", "bytes", "prefill", "Bytes of finished transfers"),
    Descriptor(
        "hidden_bytes",
        "counter",
        "bytes",
        "prefill",
        "Those of sent_bytes whose writes had ended when the request's last forward pass ended",
    ),
    Descriptor(
        "sent_pages", "counter", "pieces", "prefill", "Pieces of pages in sent_bytes, as decode counts them"
    ),
    Descriptor(
        "sent_writes",
        "counter",
        "writes",
        "prefill",
        "Writes that carried them: fewer, where pages lie side by side",
    ),
    Descriptor(
        "busy_seconds",
        "counter",
        "seconds",
        "prefill",
        "Time in which something of a request was under way, summed over sent_requests",
    ),
    Descriptor(
        "exposed_seconds",
        "counter",
        "seconds",
        "prefill",
        "Time from a request's last forward pass until the scheduler saw its transfer finished, likewise",
    ),
    Descriptor(
        "peer_bytes",
        "counter",
        "bytes",
        "prefill",
        "Bytes of finished transfers to the decode ranks of a host",
        ("peer",),
    ),
    Descriptor("nic_bytes", "counter", "bytes", "prefill", "Bytes of ended writes over a NIC", ("nic",)),
    Descriptor("writes_failed", "counter", "writes", "prefill", "Writes that ended with an error"),
    Descriptor(
        "writes_orphaned",
        "counter",
        "writes",
        "prefill",
        "Writes to a peer that is gone, whose end nobody will learn",
    ),
    Descriptor(
        "posts_repeated",
        "counter",
        "posts",
        "prefill",
        "Posts that the provider asked to repeat: full queues",
    ),
    Descriptor(
        "paths_lost", "counter", "paths", "both", "Ways from one of our NICs to one of a peer's that broke"
    ),
    Descriptor(
        "endpoints_renewed",
        "counter",
        "endpoints",
        "both",
        "Endpoints closed and opened again because writes to dead peers were left on them",
    ),
    Descriptor("units_counted", "counter", "pieces", "decode", "Pieces of pages that immediates brought"),
    Descriptor(
        "immediates_late",
        "counter",
        "immediates",
        "decode",
        "Immediates of a slot's earlier owner: what was on a wire when its request had ended",
    ),
    Descriptor("immediates_unknown", "counter", "immediates", "decode", "Immediates that no slot can mean"),
    Descriptor(
        "failed_requests",
        "counter",
        "requests",
        "both",
        "Requests that failed in this backend or were refused, on each rank",
        ("reason",),
    ),
    Descriptor(
        "dropped_messages",
        "counter",
        "messages",
        "both",
        "Control messages that were not taken, by why: of strangers, mostly",
        ("kind",),
    ),
    Descriptor(
        "first_token",
        "counter",
        "requests",
        "both",
        "Requests by who samples their first token, and why where it is prefill",
        ("mode", "reason"),
    ),
    Descriptor(
        "grammars", "counter", "requests", "both", "Requests for which this server has asked for a grammar"
    ),
    Descriptor(
        "sampled_rows", "counter", "rows", "both", "Rows of logits that this server's sampler has seen"
    ),
    Descriptor(
        "nics", "gauge", "NICs", "both", "NICs that were opened, by libfabric's provider", ("provider",)
    ),
    Descriptor("nics_lost", "gauge", "NICs", "both", "NICs that are not used any more"),
    Descriptor("rooms", "gauge", "requests", "both", "Requests that this side's messenger knows"),
    Descriptor("peers", "gauge", "ranks", "both", "Ranks of the other side that it knows"),
    Descriptor("slots_free", "gauge", "slots", "decode", "Completion slots that nobody has"),
    Descriptor("slots_used", "gauge", "slots", "decode", "Completion slots of requests under way"),
    Descriptor(
        "slots_quarantined",
        "gauge",
        "slots",
        "decode",
        "Completion slots of failed requests that somebody may still write for",
    ),
    Descriptor(
        "remembered",
        "gauge",
        "rooms",
        "both",
        "Rooms whose status or failure SGLang's own tables hold for this side",
    ),
    Descriptor(
        "pages_held", "gauge", "pages", "decode", "Pages of aborted requests that no other may have yet"
    ),
    Descriptor(
        "credits_free", "gauge", "writes", "decode", "Writes that decode may yet allow to prefill ranks"
    ),
)

# Of what the engine counts: its name there, and here.
_OF_ENGINE = {
    "writes_failed": "writes_failed",
    "writes_orphaned": "writes_orphaned",
    "post_again": "posts_repeated",
    "paths_lost": "paths_lost",
    "endpoints_renewed": "endpoints_renewed",
    "units_counted": "units_counted",
    "immediates_late": "immediates_late",
    "immediates_unknown": "immediates_unknown",
}

_counters = {
    each.name: Counter(PREFIX + each.name, each.text, each.labels)
    for each in DESCRIPTORS
    if each.kind == "counter"
}
_gauges = {
    each.name: Gauge(PREFIX + each.name, each.text, each.labels, multiprocess_mode="livesum")
    for each in DESCRIPTORS
    if each.kind == "gauge"
}
for _kind in get_args(Dropped):  # there from the start: the first one is then seen as an increase
    _counters["dropped_messages"].labels(_kind)


def count(sent: Sent) -> None:
    """Adds a finished transfer."""
    for name, value in (
        ("sent_requests", 1),
        ("sent_bytes", sent.nbytes),
        ("hidden_bytes", sent.hidden_bytes),
        ("sent_pages", sent.units),
        ("sent_writes", sent.writes),
        ("busy_seconds", sent.seconds),
        ("exposed_seconds", sent.exposed_seconds),
    ):
        _counters[name].inc(value)
    for peer, nbytes in sent.peers:
        _counters["peer_bytes"].labels(peer).inc(nbytes)


def count_failure(kind: str) -> None:
    """Adds a request that failed; see `failures.kind_of`."""
    _counters["failed_requests"].labels(kind).inc()


def count_dropped(before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Adds the control messages, by why, that were dropped between two looks at `Links.dropped`."""
    for kind, number in now.items():
        _counters["dropped_messages"].labels(kind).inc(number - before.get(kind, 0))


def count_first_token(mode: FirstToken, reason: str) -> None:
    """Adds a request. ``reason`` is empty where decode samples."""
    _counters["first_token"].labels(mode, reason).inc()


def count_grammar() -> None:
    """Adds a request whose grammar is looked up or compiled here."""
    _counters["grammars"].inc()


def count_samples(rows: int) -> None:
    """Adds what the sampler gets."""
    _counters["sampled_rows"].inc(rows)


def count_engine(before: EngineStats, now: EngineStats, nics: Sequence[str]) -> None:
    """Adds what an engine with these NICs has done between two looks at it."""
    for theirs, ours in _OF_ENGINE.items():
        more = getattr(now, theirs) - getattr(before, theirs)
        if more:
            _counters[ours].inc(more)
    for nic, earlier, later in zip(nics, before.nic_bytes, now.nic_bytes, strict=False):
        if later > earlier:
            _counters["nic_bytes"].labels(nic).inc(later - earlier)


def show_nics(provider: str, count: int) -> None:
    """Says over what pages travel: whoever asked for "auto" sees here what it has become."""
    _gauges["nics"].labels(provider).set(count)


def show(held: Held, remembered: int, nics_lost: int) -> None:
    """Takes what a messenger, SGLang's tables of rooms and an engine hold now in place of what was before."""
    for name, value in held._asdict().items():
        _gauges[name].set(value)
    _gauges["remembered"].set(remembered)
    _gauges["nics_lost"].set(nics_lost)
