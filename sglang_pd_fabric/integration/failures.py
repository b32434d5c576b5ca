"""Reasons of failures, brought down to a few kinds: a label of a metric must not have thousands of values."""

from sglang_pd_fabric.integration.http.refusals import REFUSED
from sglang_pd_fabric.settings import variable

OTHER = "other"
# The first of these that stands in the reason names the kind. What quotes others comes before what is quoted.
_MARKS = (
    (REFUSED, "refused"),
    ("cannot exchange KV pages", "incompatible"),
    (variable("secret_file"), "secret"),
    ("bootstrap address", "not found"),
    ("told us none of its ranks", "not found"),
    ("could not fetch", "not found"),
    ("integrity:", "integrity"),
    ("leaves the first token to", "first token"),
    ("is in use by another request", "room in use"),
    ("has another prompt", "room in use"),
    ("duplicate", "room in use"),
    ("completion slots are in use", "no slot"),
    ("completion queues of its NICs", "no credits"),
    ("shm endpoint", "shared memory"),
    ("/dev/shm", "shared memory"),
    ("cannot be mapped", "shared memory"),
    ("shares no memory", "shared memory"),
    ("memory that was announced", "shared memory"),
    ("outside its memory", "shared memory"),
    ("into mapped memory", "shared memory"),
    ("writing to decode failed", "transfer"),
    ("cannot write to decode", "transfer"),
    ("cannot take prefill's NIC addresses", "transfer"),
    ("cannot be sent again", "transfer"),
    ("pages to send, decode asked for", "pages"),
    ("pages between are lost", "pages"),
    ("units were counted where", "pages"),
    ("lost decode", "peer lost"),
    ("lost prefill", "peer lost"),
    ("lost connection with prefill", "peer lost"),
    ("is gone", "peer lost"),
    ("takes no messages", "peer lost"),
    ("was restarted", "peer lost"),
    ("asked for it has ended", "peer lost"),
    ("now it is down", "peer lost"),
    ("stood still", "peer lost"),
    ("has nothing left to send", "peer lost"),
    ("its answer has not come", "peer lost"),
    ("layout record", "incompatible"),
    ("not its layout's", "incompatible"),
    ("who meets whom", "incompatible"),
    ("policy mismatch", "incompatible"),
    ("requires peer attention", "incompatible"),
    ("follow_bootstrap_room conflict", "incompatible"),
    ("forward pass failed", "forward pass"),
    ("rebootstrap", "recompute"),
    ("timed out", "time-out"),
    ("timeout", "time-out"),
    ("abort", "aborted"),
    ("has ended on prefill", "ended"),
    ("has ended the request", "ended"),
    ("gone on to another request", "ended"),
    ("closed before it was complete", "ended"),
    ("ended on decode before", "ended"),
    ("failed on another rank", "ended"),
    ("has failed on prefill", "ended"),
    ("failed before it reached prefill", "ended"),
    ("is not open", "ended"),
    ("to prefill", "peer lost"),
)
KINDS = (*dict.fromkeys(kind for _, kind in _MARKS), OTHER)


def kind_of(reason: str) -> str:
    """The kind of a reason, as it stands in an error message: one of ``KINDS``."""
    lower = reason.lower()
    return next((kind for mark, kind in _MARKS if mark.lower() in lower), OTHER)
