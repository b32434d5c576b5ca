"""Reasons of failures, brought down to a few kinds: a label of a metric must not have thousands of values."""

from sglang_pd_fabric.integration.http.refusals import REFUSED

OTHER = "other"
# The first that stands in the reason names the kind.
_MARKS = (
    (REFUSED, "refused"),
    ("is in use by another request", "room in use"),
    ("bootstrap_room", "room in use"),
    ("completion slots are in use", "no slot"),
    ("integrity:", "integrity"),
    ("lost decode", "peer lost"),
    ("lost prefill", "peer lost"),
    ("is gone", "peer lost"),
    ("takes no messages", "peer lost"),
    ("was restarted", "peer lost"),
    ("stood still", "peer lost"),
    ("has nothing left to send", "peer lost"),
    ("its answer has not come", "peer lost"),
    ("bootstrap address", "not found"),
    ("told us none of its ranks", "not found"),
    ("writing to decode failed", "transfer"),
    ("timed out", "time-out"),
    ("timeout", "time-out"),
    ("decode has", "incompatible"),
    ("layout record", "incompatible"),
    ("abort", "aborted"),
)


def kind_of(reason: str) -> str:
    """The kind of a reason, as it stands in an error message."""
    lower = reason.lower()
    return next((kind for mark, kind in _MARKS if mark.lower() in lower), OTHER)
