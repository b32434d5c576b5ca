"""Our own counters on the server's ``/metrics`` page, beside SGLang's.

Imported in scheduler processes only: prometheus_client asks when it is imported where processes put their
samples, and SGLang's main process says that late.
"""

from prometheus_client import Counter, Gauge

from sglang_pd_fabric.messenger.rooms import Sent
from sglang_pd_fabric.messenger.states import FirstToken, Held

_moved = Counter("sglang_pd_fabric:sent_bytes", "Bytes of finished transfers, on the prefill side")
_hidden = Counter(
    "sglang_pd_fabric:hidden_bytes",
    "Those of them that had arrived when the request's last forward pass ended",
)
_pages = Counter("sglang_pd_fabric:sent_pages", "Pieces of pages in them, as decode counts them")
_writes = Counter(
    "sglang_pd_fabric:sent_writes", "Writes that carried them: fewer, where pages lie side by side"
)
_first_tokens = Counter(
    "sglang_pd_fabric:first_token",
    "Requests by who samples their first token, and why where it is prefill",
    ["mode", "reason"],
)
_grammars = Counter("sglang_pd_fabric:grammars", "Requests for which this server has asked for a grammar")
_sampled = Counter("sglang_pd_fabric:sampled_rows", "Rows of logits that this server's sampler has seen")
# Each is the sum over a server's ranks.
_held = {
    name: Gauge(f"sglang_pd_fabric:{name}", text, multiprocess_mode="livesum")
    for name, text in (
        ("rooms", "Requests that this side's messenger knows"),
        ("peers", "Ranks of the other side that it knows"),
        ("slots_free", "Completion slots that nobody has, on the decode side"),
        ("slots_used", "Completion slots of requests under way, on the decode side"),
        ("slots_quarantined", "Completion slots of failed requests that somebody may still write for"),
        ("remembered", "Rooms whose status or failure SGLang's own tables hold for this side"),
        ("pages_held", "Pages of aborted requests that no other may have yet, on the decode side"),
        ("credits_free", "Writes that decode may yet allow to prefill ranks"),
    )
}


def count(sent: Sent) -> None:
    """Adds a finished transfer."""
    _moved.inc(sent.nbytes)
    _hidden.inc(sent.hidden_bytes)
    _pages.inc(sent.units)
    _writes.inc(sent.writes)


def count_first_token(mode: FirstToken, reason: str) -> None:
    """Adds a request. ``reason`` is empty where decode samples."""
    _first_tokens.labels(mode, reason).inc()


def count_grammar() -> None:
    """Adds a request whose grammar is looked up or compiled here."""
    _grammars.inc()


def count_samples(rows: int) -> None:
    """Adds what the sampler gets."""
    _sampled.inc(rows)


def show(held: Held, remembered: int) -> None:
    """Takes what a messenger, and SGLang's tables of rooms, hold now in place of what they held before."""
    for name, value in held._asdict().items():
        _held[name].set(value)
    _held["remembered"].set(remembered)
