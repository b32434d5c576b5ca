"""Our own counters on the server's ``/metrics`` page, beside SGLang's."""

from prometheus_client import Counter, Gauge

from sglang_pd_fabric.messenger.rooms import Sent
from sglang_pd_fabric.messenger.states import Held

_moved = Counter("sglang_pd_fabric:sent_bytes", "Bytes of finished transfers, on the prefill side")
_hidden = Counter(
    "sglang_pd_fabric:hidden_bytes",
    "Those of them that had arrived when the request's last forward pass ended",
)
_pages = Counter("sglang_pd_fabric:sent_pages", "Pieces of pages in them, as decode counts them")
_writes = Counter(
    "sglang_pd_fabric:sent_writes", "Writes that carried them: fewer, where pages lie side by side"
)
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


def show(held: Held, remembered: int) -> None:
    """Takes what a messenger, and SGLang's tables of rooms, hold now in place of what they held before."""
    for name, value in held._asdict().items():
        _held[name].set(value)
    _held["remembered"].set(remembered)
