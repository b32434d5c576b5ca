"""What ``sglang-pd-fabric explain`` says of real servers that are slow for a known reason.

The command runs as a process of its own and reads the pages of the servers while the traffic runs. All
situations share one prefill and one decode server and an ordinary one: 5 minutes on two busy cores.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from programs import output_of

from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.traffic import KINDS, Traffic

from .slow_link import Linked

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]

SEATS = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, pool: Pool) -> Iterator[Linked]:
    """Both servers answer ``SEATS`` requests at a time."""
    del pool  # it says whether SGLang is here
    with Linked(tmp_path_factory.mktemp("linked"), ("--max-running-requests", str(SEATS))) as servers:
        yield servers


@contextmanager
def traffic(url: str, kind: str) -> Iterator[None]:
    with Traffic(url, KINDS[kind]) as asking:
        yield
    assert not asking.failure


def explained(*servers: str) -> list[dict[str, Any]]:
    """The verdicts on ten seconds, the most important first."""
    command = [sys.executable, "-m", "sglang_pd_fabric.tools.cli", "explain", "--json", *servers]
    said = json.loads(output_of(command))
    print(json.dumps(said["verdicts"], indent=1))
    verdicts: list[dict[str, Any]] = said["verdicts"]
    return verdicts


def explained_pair(pair: Linked) -> list[dict[str, Any]]:
    return explained("--prefill", pair.prefill.url, "--decode", pair.decode.url)


def kinds(verdicts: list[dict[str, Any]]) -> list[str]:
    return [verdict["kind"] for verdict in verdicts]


def run_on(cpus: set[int], processes: list[int]) -> None:
    """All their threads, and those that they start."""
    for process in processes:
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), cpus)


def test_servers_without_traffic(pair: Linked) -> None:
    assert kinds(explained_pair(pair)) == ["no_traffic"]


def test_a_slow_link_is_named(pair: Linked) -> None:
    with traffic(pair.slow_url, "steady"):
        verdicts = explained_pair(pair)
    assert kinds(verdicts)[0] == "transfer"
    assert not {"queue_prefill", "queue_decode", "prefill"} & {*kinds(verdicts)}


def test_requests_that_queue_on_prefill(pair: Linked) -> None:
    with traffic(pair.url, "prompts"):
        verdicts = explained_pair(pair)
    assert kinds(verdicts)[0] == "queue_prefill"
    assert "queue_decode" not in kinds(verdicts)


def test_requests_that_queue_on_decode(pair: Linked) -> None:
    with traffic(pair.url, "answers"):
        verdicts = explained_pair(pair)
    assert kinds(verdicts)[0] == "queue_decode"
    assert "queue_prefill" not in kinds(verdicts)


def test_nothing_is_wrong_with_a_few_short_streams(pair: Linked) -> None:
    with traffic(pair.url, "steady"):
        assert kinds(explained_pair(pair)) == ["nothing"]


def test_long_prompts_interrupt_no_stream_of_a_decode_server_with_a_core_of_its_own(pair: Linked) -> None:
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        pytest.skip("prefill and decode would share the only core")
    own = {max(cpus)}
    others = [
        *pair.prefill.family(),
        *(each for router in pair.routers for each in router.family()),
        os.getpid(),
    ]
    try:
        run_on(own, pair.decode.family())
        run_on(cpus - own, others)
        with traffic(pair.url, "long"):
            verdicts = explained_pair(pair)
    finally:
        run_on(cpus, [*pair.decode.family(), *others])
    assert "interrupted" not in kinds(verdicts)
    assert "streams are interrupted" not in str(verdicts)


def test_long_prompts_interrupt_the_streams_of_a_server_that_does_both(pool: Pool) -> None:
    ordinary = pool.ordinary("gqa")
    with traffic(ordinary.url, "long"):
        verdicts = explained("--ordinary", ordinary.url)
    assert kinds(verdicts) in (["interrupted"], ["interrupted", "prefill"])
    assert "new prompts" in verdicts[0]["text"]
    assert "prompt tokens" in " ".join(verdicts[0]["evidence"])
