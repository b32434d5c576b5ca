"""From the traces of prefill and decode (``integration/trace.py``) to what happened to one request."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]


class Pass(NamedTuple):
    """A forward pass. ``layers``: when each layer had stored its keys and values, nanoseconds."""

    number: int
    begin_ns: int
    layers: tuple[int, ...]
    end_ns: int


class Write(NamedTuple):
    """A write, from its post to its end. ``layer`` counts from 1; 0 is the metadata row."""

    nic: int
    forward: int
    layer: int
    nbytes: int
    post_ns: int
    done_ns: int


class Timeline(NamedTuple):
    """One request. ``complete_ns``: when decode's scheduler saw that everything had come."""

    passes: list[Pass]
    writes: list[Write]
    complete_ns: int


class UnfinishedError(Exception):
    """The traces do not hold the whole of a request yet; the message says what is missing."""


def read_folder(folder: Path) -> list[list[Event]]:
    """The events of each trace in the folder: prefill's, then decode's.

    Raises:
        UnfinishedError: one of them is missing, or there is more than one.
    """
    found = []
    for role in ("prefill", "decode"):
        files = list(folder.glob(f"{role}-*.jsonl"))
        if len(files) != 1:
            raise UnfinishedError(f"{len(files)} traces of {role} ranks are in {folder}; one is needed")
        lines = files[0].read_text().splitlines(keepends=True)
        found.append([json.loads(line) for line in lines if line.endswith("\n")])
    return found


def last_request(prefill: Sequence[Event], decode: Sequence[Event]) -> Timeline:
    """The request that decode completed last, where it was alone on both sides.

    Raises:
        UnfinishedError: something of it has not been traced.
    """
    complete = next((event for event in reversed(decode) if event["kind"] == "complete"), None)
    if complete is None:
        raise UnfinishedError("decode has completed no request")
    pulls = (event for event in reversed(prefill) if event["kind"] == "pull")
    pull = next((event for event in pulls if event["room"] == complete["room"]), None)
    if pull is None:
        raise UnfinishedError(f"prefill knows nothing of request {complete['room']}")
    passes = _passes(event for event in prefill if event["ns"] >= pull["ns"])
    owner = pull["slot"], pull["generation"]
    kinds = ("post", "done")
    ours = [e for e in prefill if e["kind"] in kinds and (e["slot"], e["generation"]) == owner]
    writes = _writes(sorted(ours, key=lambda event: int(event["ns"])), passes)
    if not any(write.layer == 0 for write in writes):
        raise UnfinishedError("the metadata row has not been sent")
    return Timeline(passes, writes, complete["ns"])


def _passes(events: Iterable[Event]) -> list[Pass]:
    begins: dict[int, int] = {}
    layers: dict[int, list[int]] = defaultdict(list)
    ends: dict[int, int] = {}
    for event in events:
        if event["kind"] == "pass":
            begins[event["forward"]] = event["ns"]
        elif event["kind"] == "layer" and event["steps"]:
            layers[event["forward"]].append(event["ns"])
        elif event["kind"] == "layer":
            ends[event["forward"] - 1] = event["ns"]
    running = begins.keys() - ends.keys()
    if running or not begins:
        raise UnfinishedError(f"forward passes {sorted(running)} have not ended, of {len(begins)}")
    return [Pass(number, begin, tuple(layers[number]), ends[number]) for number, begin in begins.items()]


def _writes(events: Sequence[Event], passes: Sequence[Pass]) -> list[Write]:
    """Posts with their ends: of those that look alike on one NIC the first to be posted ends first."""
    posted: dict[tuple[int, ...], deque[Event]] = defaultdict(deque)
    writes = []
    for event in events:
        alike = posted[event["nic"], event["after"], event["units"], event["nbytes"]]
        if event["kind"] == "post":
            alike.append(event)
            continue
        post = alike.popleft()
        forward = _forward(passes, post["after"], post["ns"])
        writes.append(
            Write(post["nic"], forward, post["after"], post["nbytes"], post["ns"], int(event["ns"]))
        )
    left = sum(map(len, posted.values()))
    if left:
        raise UnfinishedError(f"{left} writes have not ended")
    return sorted(writes, key=lambda write: write.post_ns)


def _forward(passes: Sequence[Pass], layer: int, ns: int) -> int:
    """The pass that a layer belongs to that is posted now: the last that had computed it; 0 for none."""
    done = 0
    for each in passes:
        computed = each.layers[layer - 1] if 0 < layer <= len(each.layers) else each.end_ns
        if computed <= ns:
            done = each.number
    return done if layer else 0
