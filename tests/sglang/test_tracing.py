"""The span of a transfer in SGLang's own trace: its trace contexts, our sender and receiver, real engines.

No server: the spans are kept in memory. What servers send to a collector: ``test_trace_servers.py``.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from documents import ROOT

from ..messenger.pair import AUX_BYTES, DECODE, PAGE_BYTES, PREFILL
from .ranks import ADDRESS, Ranks, ranks
from .test_first_token_parts import ROOM, request
from .test_hnd_pool import configured

pytest.importorskip("sglang", reason="SGLang is not installed: pip install 'sglang-pd-fabric[sglang]'")
MISSING = "OpenTelemetry is not installed: pip install 'sglang-pd-fabric[trace]'"
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", reason=MISSING)
pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason=MISSING)
kept = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=MISSING)

NAME = "sglang_pd_fabric.transfer"
SRC, DST = [3, 4, 5, 9], [20, 21, 22, 7]


@dataclass
class Spans:
    """What the process has exported."""

    exporter: Any

    def all(self) -> list[Any]:
        from opentelemetry import trace

        assert trace.get_tracer_provider().force_flush()
        return list(self.exporter.get_finished_spans())

    def ours(self, side: str) -> Any:
        """The one span of a side's rank, after its place in SGLang's trace was checked."""
        spans = {span.context.span_id: span for span in self.all()}
        found = []
        for span in (span for span in spans.values() if span.name == NAME):
            thread = spans[span.parent.span_id]
            root = spans[thread.parent.span_id]
            assert thread.attributes["thread_label"] == "unknown"
            assert root.parent is None
            assert root.attributes["bootstrap_room"] == span.attributes["bootstrap_room"] == hex(ROOM)
            if root.name.startswith(side):
                found.append(span)
        (one,) = found
        return one


@pytest.fixture(scope="module")
def exporter() -> Iterator[Any]:
    """SGLang's tracing, switched on in this process by SGLang itself; only where spans go is ours."""
    from opentelemetry import trace as telemetry
    from sglang.srt.observability import trace

    memory = kept.InMemorySpanExporter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "get_otlp_span_exporter", lambda _endpoint: memory)
        trace.process_tracing_init("nowhere", "test")
    yield memory
    telemetry.get_tracer_provider().shutdown()
    trace.opentelemetry_initialized = False


@pytest.fixture
def spans(exporter: Any) -> Spans:
    exporter.clear()
    return Spans(exporter)


class Request:
    """A request on one side: in the HTTP server's process, and, after a pickle, in the scheduler's."""

    def __init__(self, side: str, level: int = 3) -> None:
        from sglang.srt.disaggregation.utils import DisaggregationMode
        from sglang.srt.observability.req_time_stats import APIServerReqTimeStats
        from sglang.srt.observability.trace import set_global_trace_level

        set_global_trace_level(level)
        self._server = APIServerReqTimeStats(disagg_mode=DisaggregationMode(side))
        self._server.init_trace_ctx("rid", ROOM)
        self._server.set_created_time()
        self.req = request(time_stats=pickle.loads(pickle.dumps(self._server)))
        self.stats = self.req.time_stats

    def end(self) -> None:
        self.stats.set_completion_time()
        self._server.set_finished_time()


@dataclass
class World:
    """Both ranks with one request on each."""

    ranks: Ranks
    prompt: Request
    answer: Request

    def begin(self) -> tuple[Any, Any]:
        return self.ranks.sender(self.prompt.req), self.ranks.receiver(self.answer.req)

    def end(self) -> None:
        self.prompt.end()
        self.answer.end()

    def transfer(self) -> Any:
        """The request from its beginning to its good end. Returns prefill's sender."""
        sender, receiver = self.begin()
        self.ranks.ask(receiver, DST)
        self.ranks.send(sender, SRC)
        self.ranks.wait(sender, receiver)
        sender.clear()
        receiver.clear()
        self.end()
        return sender


@contextmanager
def world(provider: str = "tcp", level: int = 3) -> Iterator[World]:
    """SGLang traces nothing at level 0."""
    with configured(), ranks(provider) as both:
        yield World(both, Request("prefill", level), Request("decode", level))


def failure(span: Any) -> tuple[Any, Any]:
    return span.attributes.get("error.type"), span.attributes.get("sglang_pd_fabric.failure")


@pytest.mark.parametrize("provider", ["tcp", "mapped"])
def test_each_side_has_a_span_with_what_was_moved(spans: Spans, provider: str) -> None:
    with world(provider) as two:
        sent = two.transfer()._sent
    here, there = spans.ours("prefill"), spans.ours("decode")
    kv = len(SRC) * sum(PAGE_BYTES)
    nbytes = kv + sum(AUX_BYTES)
    assert dict(here.attributes) == {
        "bootstrap_room": hex(ROOM),
        "sglang_pd_fabric.provider": "tcp",
        "sglang_pd_fabric.peers": (DECODE.host,),
        "sglang_pd_fabric.pages": len(SRC),
        "sglang_pd_fabric.bytes": nbytes,
        "sglang_pd_fabric.mapped_bytes": nbytes * (provider == "mapped"),
        "sglang_pd_fabric.hidden_bytes": sent.hidden_bytes,
        "sglang_pd_fabric.pieces": len(SRC) * len(PAGE_BYTES) + len(AUX_BYTES),
        "sglang_pd_fabric.writes": sent.writes,
        "sglang_pd_fabric.busy_seconds": sent.seconds,
        "sglang_pd_fabric.exposed_seconds": sent.exposed_seconds,
    }
    assert dict(there.attributes) == {
        "bootstrap_room": hex(ROOM),
        "sglang_pd_fabric.provider": "tcp",
        "sglang_pd_fabric.peers": (PREFILL.host,),
        "sglang_pd_fabric.pages": len(DST),
        "sglang_pd_fabric.bytes": kv,
    }
    # Decode asks, prefill hears of it, hands everything over, and is done.
    (event,) = here.events
    assert event.name == "sglang_pd_fabric.handed_over"
    assert there.start_time <= here.start_time <= event.timestamp <= here.end_time
    assert there.start_time < there.end_time


def test_it_begins_with_the_pull_even_if_that_comes_before_the_request(spans: Spans) -> None:
    with world() as two:
        receiver = two.ranks.receiver(two.answer.req)
        two.ranks.ask(receiver, DST)
        before = Request("prefill")  # prefill's HTTP server gets the request after its Pull
        sender = two.ranks.sender(before.req)
        two.ranks.send(sender, SRC)
        two.ranks.wait(sender, receiver)
        before.end()
        two.end()
    here = spans.ours("prefill")
    roots = [span for span in spans.all() if span.name.startswith("prefill")]
    assert here.start_time < max(root.start_time for root in roots)


def test_a_failed_transfer_says_why_on_both_sides(spans: Spans) -> None:
    """Decode aborts: prefill has planned two of the pages, and hears of it."""
    with world() as two:
        sender, receiver = two.begin()
        two.ranks.ask(receiver, DST)
        two.ranks.both.prefill.plan(ROOM, np.array(SRC[:2], np.int32), 0, forward=1)
        receiver.abort()
        two.ranks.wait(sender, receiver)
        for end in (sender, receiver):
            with pytest.raises(Exception, match="bort"):
                end.failure_exception()
        two.ranks.both.deliver()
        two.end()
    here, there = spans.ours("prefill"), spans.ours("decode")
    assert failure(here) == ("aborted", "aborted by decode")
    assert failure(there) == ("aborted", "Aborted by AbortReq.")
    assert here.attributes["sglang_pd_fabric.pages"] == 2
    assert here.attributes["sglang_pd_fabric.bytes"] == here.attributes["sglang_pd_fabric.writes"] == 0
    assert here.attributes["sglang_pd_fabric.exposed_seconds"] == 0
    assert not here.events


def test_a_failure_before_the_pull_has_a_span_too(spans: Spans) -> None:
    with world() as two:
        sender, receiver = two.begin()
        two.ranks.prefill._refuse(ROOM, "it is too long")
        receiver.fail("prefill is gone")
        two.ranks.wait(sender, receiver)
        two.end()
    assert failure(spans.ours("prefill")) == ("other", "it is too long")
    there = spans.ours("decode")
    assert failure(there) == ("peer lost", "prefill is gone")
    assert "sglang_pd_fabric.bytes" not in there.attributes


def test_what_failed_on_another_rank_says_so(spans: Spans) -> None:
    """SGLang ends it here without a reason of ours."""
    with world() as two:
        sender, receiver = two.begin()
        for end in (sender, receiver):
            with pytest.raises(Exception, match="another rank"):
                end.failure_exception()
        two.end()
    for side in ("prefill", "decode"):
        assert failure(spans.ours(side)) == ("ended", "failed on another rank")


def test_a_second_request_with_the_room_is_told_apart_from_the_first(spans: Spans) -> None:
    """Its span has nothing of what the first one sends, on either side."""
    from sglang_pd_fabric.integration.conn.receiver import FabricKVReceiver
    from sglang_pd_fabric.integration.conn.sender import FabricKVSender

    with world() as two:
        sender, receiver = two.begin()
        two.ranks.ask(receiver, DST)
        two.ranks.send(sender, SRC)
        for side, kind in (("prefill", FabricKVSender), ("decode", FabricKVReceiver)):
            late, manager = Request(side), getattr(two.ranks, side)
            manager.entering = late.req  # past the door, which would answer 400
            two.ranks.wait(kind(manager, ADDRESS, ROOM))
            late.end()
        refused = {span.context.span_id: span for span in spans.all() if span.name == NAME}
        assert [failure(span)[0] for span in refused.values()] == ["room in use"] * 2
        assert not any(span.attributes.get("sglang_pd_fabric.bytes") for span in refused.values())
        two.ranks.wait(sender, receiver)
        two.end()
    assert len([span for span in spans.all() if span.name == NAME]) == 4


def test_it_is_not_lost_when_sglang_has_ended_its_part_of_the_trace(spans: Spans) -> None:
    """A client that hangs up between two chunks: ``process_pending_chunked_abort`` ends the trace first."""
    with world() as two:
        sender, receiver = two.begin()
        two.ranks.ask(receiver, DST)
        two.prompt.stats.trace_ctx.abort(abort_info={"reason": "Aborted"})
        sender.abort()
        receiver.abort()
        two.ranks.wait(receiver)
        two.end()
    assert failure(spans.ours("prefill"))[0] == "aborted"


def test_a_request_that_is_not_traced_costs_nothing(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_pd_fabric.integration.tracing import TransferSpan

    def measured(*_arguments: Any) -> None:
        raise AssertionError("something was measured for a request that nobody traces")

    for name in ("__init__", "pulled", "sent", "received"):
        monkeypatch.setattr(TransferSpan, name, measured)
    with world(level=0) as two:
        two.transfer()
    assert not spans.all()


def test_the_page_on_traces_has_every_name(spans: Spans) -> None:
    with world() as two:
        sender, receiver = two.begin()
        two.ranks.ask(receiver, DST)
        two.ranks.send(sender, SRC)
        sender.abort()
        two.ranks.wait(sender, receiver)
        two.end()
    ours = [spans.ours(side) for side in ("prefill", "decode")]
    names = {name for span in ours for name in span.attributes} | {NAME}
    names |= {event.name for span in ours for event in span.events}
    page = (ROOT / "docs" / "traces.md").read_text()
    listed = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    assert names <= listed
    assert {name for name in listed if name.startswith("sglang_pd_fabric.")} <= names
