"""Our own counters on the server's ``/metrics`` page, beside SGLang's."""

from prometheus_client import Counter, Gauge

from sglang_pd_fabric.messenger.receiving import Held
from sglang_pd_fabric.messenger.rooms import Sent

_moved = Counter("sglang_pd_fabric:sent_bytes", "Bytes of finished transfers, on the prefill side")
_hidden = Counter(
    "sglang_pd_fabric:hidden_bytes",
    "Those of them that had arrived when the request's last forward pass ended",
)
_pages = Counter("sglang_pd_fabric:sent_pages", "Pieces of pages in them, as decode counts them")
_writes = Counter(
    "sglang_pd_fabric:sent_writes", "Writes that carried them: fewer, where pages lie side by side"
)
_held = Gauge(
    "sglang_pd_fabric:held_pages",
    "Pages of aborted requests that no other request may have yet, on the decode side",
)


def show_held(held: Held) -> None:
    """Pages that are kept back now, because a write into them may be on its way."""
    _held.set(held.pages)


def count(sent: Sent) -> None:
    """Adds a finished transfer."""
    _moved.inc(sent.nbytes)
    _hidden.inc(sent.hidden_bytes)
    _pages.inc(sent.units)
    _writes.inc(sent.writes)
