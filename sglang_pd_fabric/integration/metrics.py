"""Our own counters on the server's ``/metrics`` page, beside SGLang's.

Imported in scheduler processes only: SGLang's main process must first say where processes put their samples, and
prometheus_client asks for that when it is imported.
"""

from prometheus_client import Counter

from sglang_pd_fabric.messenger.messages import FirstToken
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
_first_tokens = Counter(
    "sglang_pd_fabric:first_token",
    "Requests by who samples their first token, and why where it is prefill",
    ["mode", "reason"],
)
_grammars = Counter("sglang_pd_fabric:grammars", "Requests for which this server has asked for a grammar")
_sampled = Counter("sglang_pd_fabric:sampled_rows", "Rows of logits that this server's sampler has seen")


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
