"""The main job: prefill, decode and router over libfabric answer what one ordinary server answers."""

import pytest

from sglang_pd_fabric.tools.demo.client import ask_all
from sglang_pd_fabric.tools.demo.cluster import ClusterOptions
from sglang_pd_fabric.tools.demo.compare import differences
from sglang_pd_fabric.tools.demo.metrics import read_transfers
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import make_questions
from sglang_pd_fabric.tools.tiny.config import Model

from .conftest import Reference

pytestmark = pytest.mark.sglang

QUESTIONS = make_questions(20)
nightly = pytest.mark.nightly
COMBINATIONS = [
    pytest.param("gqa", "tcp", 64, id="gqa-tcp-page64"),
    pytest.param("gqa", "shm", 1, id="gqa-shm-page1"),
    pytest.param("mla", "shm", 64, id="mla-shm-page64"),
    pytest.param("mla", "tcp", 1, id="mla-tcp-page1"),
    pytest.param("mla", "mapped", 16, id="mla-mapped-page16"),
    pytest.param("gqa", "mapped", 64, id="gqa-mapped-page64", marks=nightly),
    pytest.param("gqa", "tcp", 1, id="gqa-tcp-page1", marks=nightly),
    pytest.param("gqa", "shm", 64, id="gqa-shm-page64", marks=nightly),
    pytest.param("mla", "tcp", 64, id="mla-tcp-page64", marks=nightly),
    pytest.param("mla", "shm", 1, id="mla-shm-page1", marks=nightly),
]


@pytest.mark.parametrize(("model", "provider", "page_size"), COMBINATIONS)
def test_twenty_prompts_eight_at_a_time_equal_the_ordinary_server(
    pool: Pool, reference: Reference, backend: str, model: Model, provider: str, page_size: int
) -> None:
    expected = reference(model, QUESTIONS)
    options = ClusterOptions(model=model, backend=backend, provider=provider, page_size=page_size)
    cluster = pool.cluster(options)
    urls = [server.url for server in cluster.prefills]
    before = read_transfers(urls)
    actual = ask_all(cluster.url, QUESTIONS, at_once=8)
    assert not differences(QUESTIONS, expected, actual)
    # Once more: prompts of the first round are in prefill's prefix cache now.
    again = ask_all(cluster.url, QUESTIONS, at_once=8)
    assert not differences(QUESTIONS, expected, again)
    assert any(answer.cached_tokens for answer in again)
    moved = read_transfers(urls) - before
    assert moved.requests == 2 * len(QUESTIONS)
    assert moved.megabytes > 1
