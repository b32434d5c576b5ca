"""The soak's faults, done to real processes that only say that they are healthy."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import psutil  # type: ignore[import-untyped]
import pytest

from sglang_pd_fabric.tools.demo.cluster import Cluster, Group
from sglang_pd_fabric.tools.demo.processes import Spec
from sglang_pd_fabric.tools.demo.servers import free_ports
from sglang_pd_fabric.tools.soak.injector import Injector
from sglang_pd_fabric.tools.soak.records import Event, Injection, Violation

HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Healthy(Group):
    """Two servers that answer /health."""

    def __init__(self, logs: Path) -> None:
        super().__init__(logs, lambda _line: None)
        names = ("prefill-0", "decode-0")
        self._start(
            [
                Spec(name, (sys.executable, "-c", HEALTHY, str(port)), {}, f"http://127.0.0.1:{port}")
                for name, port in zip(names, free_ports(2), strict=True)
            ]
        )


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Healthy]:
    with Healthy(tmp_path) as running:
        yield running


def inject(group: Healthy, *plan: Injection) -> tuple[Injector, list[Event], list[Violation]]:
    begin = time.monotonic()
    events: list[Event] = []
    violations: list[Violation] = []
    injector = Injector(cast(Cluster, group), lambda: time.monotonic() - begin, events, violations.append)
    asyncio.run(injector.run(plan))
    return injector, events, violations


@pytest.mark.parametrize("again_s", [None, 0.1])
def test_a_killed_server_comes_back_with_a_log_of_its_own(group: Healthy, again_s: float | None) -> None:
    before = {server.name: server.pid for server in group.servers}
    injector, events, violations = inject(group, Injection(0.0, "kill", "decode-0", 0.1, again_s))
    assert not violations
    (event,) = events
    assert (event.fault, event.target) == ("kill", "decode-0")
    assert event.until_s is not None
    prefill, decode = group.servers
    assert prefill.pid == before["prefill-0"]
    assert before["decode-0"] in injector.killed
    assert not any(psutil.pid_exists(pid) for pid in injector.killed)
    assert decode.ready()
    assert len(list(group.logs.glob("decode-0*.log"))) == (2 if again_s is None else 3)


def test_a_frozen_server_goes_on_as_the_same_process(group: Healthy) -> None:
    before = [server.pid for server in group.servers]
    _, (event,), violations = inject(group, Injection(0.0, "freeze", "prefill-0", 0.2))
    assert not violations
    assert event.until_s is not None
    assert event.until_s >= event.at_s + 0.2
    assert [server.pid for server in group.servers] == before
    assert all(server.ready() for server in group.servers)


def test_a_server_that_is_away_is_not_hit_again(group: Healthy) -> None:
    injector, events, _ = inject(
        group, Injection(0.0, "freeze", "decode-0", 0.3), Injection(0.1, "kill", "decode-0", 0.0)
    )
    assert injector.skipped == 1
    assert [event.fault for event in events] == ["freeze"]


def test_a_server_that_ends_by_itself_is_told(group: Healthy) -> None:
    _, decode = group.servers
    decode.kill()
    _, events, (violation,) = inject(group, Injection(1.0, "freeze", "prefill-0", 0.0))
    assert violation.kind == "death"
    assert "decode-0 ended by itself with status -9" in violation.what
    assert [(event.fault, event.target) for event in events] == [
        ("kill", "decode-0"),
        ("freeze", "prefill-0"),
    ]
