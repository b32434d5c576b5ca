"""From time stamps to a table: joins what prefill and decode wrote about a request, and sums it up."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sglang_pd_fabric.integration.stamps import Stamp

ORDINARY = "ordinary"  # in the backends' column: one server, which hands nothing over
OURS = "fabric"
GOAL = 0.5  # our median over a peer's


class StampError(ValueError):
    """A request lacks a time stamp, or its stamps contradict each other; the message names its room."""


class Times(NamedTuple):
    """Of one request, in milliseconds after its last forward pass on prefill."""

    taken: float  # SGLang's prefill loop takes the result, and would now send the pages
    handover: float  # decode may schedule the request


class Request(NamedTuple):
    """One request as it was asked: where, how long it was, its room, and seconds to its one token."""

    backend: str
    tokens: int
    room: int
    seconds: float


class Record(NamedTuple):
    """All requests of one length to one backend, in milliseconds. The ordinary server has a TTFT only."""

    backend: str
    tokens: int
    requests: int
    ttft_ms: float
    handover_ms: float | None = None
    handover_p90_ms: float | None = None
    taken_ms: float | None = None
    handovers_ms: tuple[float, ...] = ()


def join(stamps: Iterable[Stamp], rooms: Iterable[int]) -> dict[int, Times]:
    """Times of each room, from the stamps of all processes.

    A prompt in chunks is computed several times; the last time counts.

    Raises:
        StampError: a room was not computed, taken and transferred, or not in that order.
    """
    events: dict[int, dict[str, int]] = {room: {} for room in rooms}
    for stamp in stamps:
        if stamp.room in events:
            of_room = events[stamp.room]
            of_room[stamp.event] = max(stamp.ns, of_room.get(stamp.event, 0))
    return {room: _times(room, of_room) for room, of_room in events.items()}


def _times(room: int, events: dict[str, int]) -> Times:
    try:
        computed, taken, transferred = events["computed"], events["taken"], events["transferred"]
    except KeyError as missing:
        raise StampError(f"request in room {room} was never {missing.args[0]}") from None
    if not computed <= taken <= transferred:
        raise StampError(f"request in room {room} was transferred before it was computed")
    return Times((taken - computed) / 1e6, (transferred - computed) / 1e6)


def summarise(requests: Sequence[Request], stamps: Iterable[Stamp]) -> list[Record]:
    """One record for each backend and length, in the order in which they first appear.

    Raises:
        StampError: see ``join``.
    """
    times = join(stamps, [request.room for request in requests if request.backend != ORDINARY])
    groups: dict[tuple[str, int], list[Request]] = {}
    for request in requests:
        groups.setdefault((request.backend, request.tokens), []).append(request)
    return [_record(*key, group, times) for key, group in groups.items()]


def _record(backend: str, tokens: int, requests: list[Request], times: dict[int, Times]) -> Record:
    ttft = statistics.median(request.seconds for request in requests) * 1e3
    if backend == ORDINARY:
        return Record(backend, tokens, len(requests), ttft)
    handovers = tuple(times[request.room].handover for request in requests)
    taken = statistics.median(times[request.room].taken for request in requests)
    middle = statistics.median(handovers)
    return Record(backend, tokens, len(requests), ttft, middle, p90(handovers), taken, handovers)


def p90(values: Sequence[float]) -> float:
    """The smallest of the values that nine tenths of them do not exceed."""
    return sorted(values)[-(-9 * len(values) // 10) - 1]


def table(records: Sequence[Record]) -> str:
    """One line for each record, by length; `ours / it` is our median over this backend's."""
    lines = [
        f"{'backend':14s}{'tokens':>7s}{'requests':>9s}{'hand-over ms':>14s}{'p90 ms':>9s}{'TTFT ms':>10s}"
        f"{'ours / it':>11s}"
    ]
    ours = {record.tokens: record.handover_ms for record in records if record.backend == OURS}
    for record in sorted(records, key=lambda record: record.tokens):
        middle, high, share = "", "", ""
        if record.handover_ms is not None and record.handover_p90_ms is not None:
            middle, high = f"{record.handover_ms:.2f}", f"{record.handover_p90_ms:.2f}"
            own = ours.get(record.tokens)
            if own is not None and record.backend != OURS:
                share = f"{own / record.handover_ms:.2f}{'' if own <= GOAL * record.handover_ms else ' !'}"
        lines.append(
            f"{record.backend:14s}{record.tokens:7d}{record.requests:9d}{middle:>14s}{high:>9s}"
            f"{record.ttft_ms:10.1f}{share:>11s}"
        )
    return "\n".join(lines)
