"""Layer by layer: pages travel while their forward pass runs, once each, and the answers stay right."""

import httpx
import pytest

from sglang_pd_fabric.tools.demo.client import ask_all
from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions
from sglang_pd_fabric.tools.demo.compare import differences
from sglang_pd_fabric.tools.demo.metrics import sample_sums
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import Question, make_questions, text

from .conftest import Reference

pytestmark = pytest.mark.sglang

QUESTIONS = make_questions(12, seed=21)


def options(*, overlap: bool, **more: object) -> ClusterOptions:
    return ClusterOptions(
        model="gqa", provider="tcp", page_size=16, chunked_prefill_size=128, overlap=overlap, **more
    )


def counters(cluster: Cluster) -> tuple[float, float]:
    """Bytes sent, and those of them that had arrived when their request's last forward pass ended."""
    page = httpx.get(f"{cluster.prefills[0].url}/metrics", timeout=30, follow_redirects=True).text
    sums = sample_sums(page)
    return tuple(sums.get(f"sglang_pd_fabric:{name}_bytes_total", 0.0) for name in ("sent", "hidden"))


def shared_prefix(count: int) -> list[Question]:
    """Long prompts with one beginning, all at once: each sees the others' pages in the prefix cache."""
    start = text(500, 77)
    return [Question(f"shared-{i}", start + text(300 + 40 * i, 600 + i)) for i in range(count)]


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
def test_answers_are_right_and_pages_travel_during_the_forward_pass(
    pool: Pool, reference: Reference, overlap: bool
) -> None:
    cluster = pool.cluster(options(overlap=overlap))
    before = counters(cluster)
    for questions in (QUESTIONS, shared_prefix(8), QUESTIONS):
        expected = reference("gqa", questions)
        assert not differences(questions, expected, ask_all(cluster.url, questions, at_once=8))
    sent, hidden = (after - start for after, start in zip(counters(cluster), before, strict=True))
    assert sent > 0
    print(f"{hidden / sent:.1%} of {sent / 1e6:.0f} MB had arrived when its last forward pass ended")
    assert hidden > 0
    # A prompt of one chunk: nothing of it can travel behind a later chunk.
    for seed in range(3, 23):  # the I/O thread may get no processor within one pass of some milliseconds
        question, before = Question("one chunk", text(100, seed)), counters(cluster)
        assert not differences([question], reference("gqa", [question]), ask_all(cluster.url, [question]))
        if counters(cluster)[1] > before[1]:
            return
    pytest.fail("no page of twenty short prompts travelled before its forward pass ended")


@pytest.mark.nightly
def test_the_switch_turns_it_off(pool: Pool, reference: Reference) -> None:
    cluster = pool.cluster(options(overlap=False, env={"SGLANG_PD_FABRIC_LAYERWISE": "0"}))
    question = Question("one chunk", text(100, 3))
    expected = reference("gqa", [question])
    assert not differences([question], expected, ask_all(cluster.url, [question]))
    sent, hidden = counters(cluster)
    assert sent > 0
    assert hidden == 0
