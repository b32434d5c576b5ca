"""A collector of OpenTelemetry spans: takes OTLP over gRPC, as SGLang speaks it, and keeps what comes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Span:
    """One span as it came. Identifiers are in hexadecimal; ``parent`` is empty for the first of a trace."""

    trace: str
    number: str
    parent: str
    name: str
    start: int
    end: int
    attributes: dict[str, Any]


@dataclass
class Collector:
    """What has come so far."""

    endpoint: str = ""
    spans: dict[str, Span] = field(default_factory=dict)
    _came: threading.Condition = field(default_factory=threading.Condition)

    def take(self, request: Any) -> None:
        with self._came:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        self.spans[span.span_id.hex()] = Span(
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.name,
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                            {each.key: _value(each.value) for each in span.attributes},
                        )
            self._came.notify_all()

    def wait(self, enough: Callable[[], bool], seconds: float = 60.0) -> None:
        """Until enough has come; servers export when they like."""
        with self._came:
            assert self._came.wait_for(enough, seconds), sorted(span.name for span in self.spans.values())

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans.values() if span.name == name]

    def above(self, span: Span) -> list[Span]:
        """Its parent, the parent of that, and so on, as far as they have come."""
        found: list[Span] = []
        while span.parent in self.spans:
            span = self.spans[span.parent]
            found.append(span)
        return found


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    plain = getattr(value, kind)
    return [_value(each) for each in plain.values] if kind == "array_value" else plain


@contextmanager
def collector() -> Iterator[Collector]:
    """One that listens on a free port of 127.0.0.1."""
    import grpc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

    kept = Collector()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, _context: Any) -> Any:  # noqa: N802  (gRPC's name)
            kept.take(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    kept.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield kept
    finally:
        server.stop(grace=None).wait()
