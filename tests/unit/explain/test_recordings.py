"""What is said of real servers, whose pages were recorded while known traffic ran."""

from pathlib import Path

import pytest

from sglang_pd_fabric.tools.explain import phases as ph
from sglang_pd_fabric.tools.explain.figures import Figures, of_cluster, of_ordinary
from sglang_pd_fabric.tools.explain.page import Window
from sglang_pd_fabric.tools.explain.report import to_text
from sglang_pd_fabric.tools.explain.rules import Kind, judge
from tests.unit.explain.recordings import SECONDS, window


def cluster(situation: str) -> Figures:
    none = Window((), SECONDS)
    prefill, decode = (window(situation, role) for role in ("prefill", "decode"))
    return of_cluster(prefill, decode, none, shared_host=True)


def kinds(figures: Figures) -> list[Kind]:
    return [verdict.kind for verdict in judge(figures)]


def test_four_short_streams_at_a_time_wait_for_nothing() -> None:
    assert kinds(cluster("steady")) == [Kind.NOTHING]


def test_a_burst_of_streams_stands_in_both_queues() -> None:
    assert kinds(cluster("burst")) == [Kind.QUEUE_DECODE, Kind.QUEUE_PREFILL]


def test_long_prompts_interrupt_streams_of_the_server_that_computes_them() -> None:
    found = judge(of_ordinary(window("long", "ordinary")))
    assert [verdict.kind for verdict in found] == [Kind.INTERRUPTED]
    assert "32092 prompt tokens" in " ".join(found[0].evidence)


def test_long_prompts_on_prefill_interrupt_streams_of_decode_on_the_same_cores() -> None:
    found = judge(cluster("longpd"))
    assert [verdict.kind for verdict in found] == [Kind.INTERRUPTED]
    assert "most likely by prompts on the same host" in found[0].text


def test_a_slow_link_is_named_with_what_went_over_it() -> None:
    found = judge(cluster("slow"))
    assert [verdict.kind for verdict in found] == [Kind.TRANSFER]
    assert "10.2 MB in 12 requests, 0.5 MB/s each" in found[0].evidence


@pytest.mark.parametrize("situation", ["steady", "burst", "longpd", "slow"])
def test_every_phase_is_measured_and_they_add_up(situation: str) -> None:
    figures = cluster(situation)
    whole = ph.total(figures)
    parts = [phase.seconds for phase in ph.phases(figures) if phase.name != ph.ROUTER]
    assert figures.answers.ttft is not None
    assert None not in parts
    assert sum(part or 0.0 for part in parts) == pytest.approx(whole)


def test_our_own_counters_are_read() -> None:
    moved = cluster("steady").moved
    assert moved.bytes
    assert moved.hidden_bytes
    assert 0 < moved.hidden_bytes < moved.bytes
    assert moved.requests == 102
    assert moved.pages
    assert moved.writes
    assert moved.pages > moved.writes


def test_a_page_that_did_not_change_is_no_traffic() -> None:
    page = window("steady", "decode").pages[0][1]
    still = Window([(page, page)], SECONDS)
    assert kinds(of_cluster(still, still, Window((), SECONDS), shared_host=False)) == [Kind.NO_TRAFFIC]


def test_the_examples_of_the_documentation_are_what_is_said() -> None:
    page = (Path(__file__).parents[3] / "docs" / "explain.md").read_text()
    figures = of_ordinary(window("long", "ordinary"))
    said = to_text(figures, judge(figures)).partition("\n\n")[0]
    assert f"```text\n{said}\n```" in page
    slow = cluster("slow")
    assert f"```text\n{to_text(slow, judge(slow))}\n```" in page
