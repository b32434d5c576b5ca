"""The transfer of a request as a span in SGLang's own OpenTelemetry trace of that request.

With ``--enable-trace`` each request has a trace context, with which a scheduler adds its stages below a span
of its thread, and that below the request's (sglang/srt/observability/trace.py). We add ours by the same call,
so level, modules and the asynchronous exporter are as SGLang was told. Only SGLang imports OpenTelemetry.
A request that is not traced has no ``TransferSpan``, and nothing is measured for it.
"""

import time
from collections.abc import Iterable
from typing import Any

from sglang.srt.observability.req_time_stats import convert_time_to_realtime_ns
from sglang.srt.observability.trace import TraceEvent, TraceReqContext, TraceSliceContext

from sglang_pd_fabric.integration.failures import kind_of
from sglang_pd_fabric.messenger.rooms import Sent

PREFIX = "sglang_pd_fabric."
NAME = f"{PREFIX}transfer"
HANDED_OVER = f"{PREFIX}handed_over"
LEVEL = 1  # as SGLang's own stages: ``/set_trace_level?level=0`` turns all of them off

Attributes = dict[str, str | int | float | list[str]]


class TransferSpan:
    """One rank's part of a transfer, written when it ends. Made, used and ended on the scheduler's thread.

    Args:
        context: SGLang's trace context of the request.
        room: its number.
        provider: of this rank's engine.
    """

    def __init__(self, context: Any, room: int, provider: str) -> None:
        self._context = context
        self._known: Attributes = {"bootstrap_room": hex(room), f"{PREFIX}provider": provider}
        self._began = time.monotonic()

    @classmethod
    def of(cls, manager: Any, room: int) -> "TransferSpan | None":
        """For the request that a manager takes in, if that is traced. It begins now, or with the Pull."""
        req = manager.entering
        if req is None or not req.time_stats.trace_ctx.tracing_enable:
            return None
        return cls(req.time_stats.trace_ctx, room, manager.engine.profile.name)

    def pulled(self, pages: int, nbytes: int, peers: Iterable[str]) -> None:
        """Decode asks for its pages now: so many, with so many bytes, of the prefill ranks on these hosts."""
        self._began = time.monotonic()
        self._know(pages, nbytes, peers)

    def received(self, reason: str | None) -> None:
        """Decode's part ends now; with a reason: it has failed."""
        self._write(reason, [])

    def sent(self, sent: Sent, pages: int, reason: str | None) -> None:
        """Prefill's part ends now. It began with the first Pull, if one came.

        Args:
            sent: what went out.
            pages: how many of the request were handed over to the engine.
            reason: why it has failed; None: it has not.
        """
        self._began = sent.pulled or self._began
        self._know(pages, sent.nbytes, (host for host, _ in sent.peers))
        self._known |= {
            f"{PREFIX}pieces": sent.units,
            f"{PREFIX}writes": sent.writes,
            f"{PREFIX}mapped_bytes": sent.mapped_bytes,
            f"{PREFIX}hidden_bytes": sent.hidden_bytes,
            f"{PREFIX}busy_seconds": sent.seconds,
            f"{PREFIX}exposed_seconds": sent.exposed_seconds,
        }
        times = [sent.handed_over] if sent.handed_over else []
        self._write(reason, [TraceEvent(HANDED_OVER, convert_time_to_realtime_ns(at), {}) for at in times])

    def _know(self, pages: int, nbytes: int, peers: Iterable[str]) -> None:
        self._known |= {
            f"{PREFIX}pages": pages,
            f"{PREFIX}bytes": nbytes,
            f"{PREFIX}peers": sorted(set(peers)),
        }

    def _write(self, reason: str | None, events: list[TraceEvent]) -> None:
        if reason is not None:
            self._known |= {"error.type": kind_of(reason), f"{PREFIX}failure": reason}
        # SGLang's clock, perf_counter, is the monotonic one on Linux.
        began, ended = (convert_time_to_realtime_ns(at) for at in (self._began, time.monotonic()))
        ours = TraceSliceContext(NAME, began, ended, level=LEVEL, attrs=self._known, events=events)
        # SGLang ends its part before it aborts a request between two chunks, and a slice would be lost.
        over = isinstance(self._context, TraceReqContext) and self._context.thread_context is None
        if over:
            self._context.rebuild_thread_context(began)
        self._context.trace_slice(ours, over)
