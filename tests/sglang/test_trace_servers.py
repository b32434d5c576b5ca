"""Spans of real servers at a real collector: ours lie below SGLang's of the same request, on both sides.

Nightly: two servers and a router of its own for each way to export, 70 s each.
"""

from __future__ import annotations

import secrets
import time

import pytest

from sglang_pd_fabric.tools.demo.client import ask_all
from sglang_pd_fabric.tools.demo.cluster import ClusterOptions
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import Question, text

from .collector import Collector, Span, collector
from .direct import ask_both

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]

MISSING = "OpenTelemetry is not installed: pip install 'sglang-pd-fabric[trace]'"
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", reason=MISSING)
pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason=MISSING)

NAME = "sglang_pd_fabric.transfer"
LENGTHS = (1, 200, 700)  # in chunks of 256


def by_side(kept: Collector) -> dict[str, list[Span]]:
    """Our spans by the side whose scheduler's span they lie in, after their places were checked."""
    sides: dict[str, list[Span]] = {"Prefill Scheduler": [], "Decode Scheduler": []}
    for span in kept.named(NAME):
        thread, root = kept.above(span)[:2]
        sides[thread.attributes["thread_label"]].append(span)
        assert thread.attributes["tp_rank"] == 0
        assert root.attributes["module"] == "sglang::request"
        assert root.attributes["bootstrap_room"] == span.attributes["bootstrap_room"]
        assert span.trace == root.trace
    return sides


def complete(kept: Collector, count: int) -> bool:
    """Whether so many of our spans have come with everything that they lie in."""
    ours = kept.named(NAME)
    return len(ours) >= count and all(len(kept.above(span)) >= 2 for span in ours)


@pytest.mark.parametrize("way", ["at once", "by another process"])
def test_a_transfer_is_seen_below_the_request_on_both_sides(pool: Pool, way: str) -> None:
    with collector() as kept:
        flags = ("--enable-trace", "--otlp-traces-endpoint", kept.endpoint)
        env = {"SGLANG_TRACE_ASYNC": "1"} if way == "by another process" else {}
        cluster = pool.cluster(ClusterOptions(chunked_prefill_size=256, flags=flags, env=env))
        began = time.time_ns()
        questions = [Question(f"q{length}", text(length, length), answer_tokens=2) for length in LENGTHS]
        assert [answer.error for answer in ask_all(cluster.url, questions, at_once=1)] == [""] * 3
        kept.wait(lambda: complete(kept, 2 * len(LENGTHS)))
        sides = by_side(kept)
        rooms = [[span.attributes["bootstrap_room"] for span in each] for each in sides.values()]
        assert sorted(rooms[0]) == sorted(rooms[1])
        assert len(set(rooms[0])) == len(LENGTHS)
        for span in kept.named(NAME):
            assert began < span.start < span.end < time.time_ns()
            assert "error.type" not in span.attributes
            assert span.attributes["sglang_pd_fabric.bytes"] > 0
            assert span.attributes["sglang_pd_fabric.peers"] == ["127.0.0.1"]
        # Prefill's stage that SGLang itself has of a transfer begins later: it is what is exposed of it.
        for span in sides["Prefill Scheduler"]:
            (stage,) = (
                each for each in kept.named("prefill_transfer_kv_cache") if each.parent == span.parent
            )
            assert span.start < stage.start
        # Whoever asks both servers with one trace finds both of their spans in it.
        trace = f"{secrets.randbits(128) | 1:032x}"
        replies = ask_both(
            cluster.prefills[0].url,
            cluster.decodes[0].url,
            cluster.bootstrap_ports[0],
            questions[1],
            headers={"traceparent": f"00-{trace}-{'12' * 8}-01"},
        )
        assert [reply.status for reply in replies] == [200, 200]
        kept.wait(lambda: complete(kept, 2 * len(LENGTHS) + 2))
        sides = by_side(kept)
        assert [sum(span.trace == trace for span in each) for each in sides.values()] == [1, 1]
