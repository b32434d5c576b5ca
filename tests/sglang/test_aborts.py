"""Clients that hang up at any moment: nobody else's answer changes, and nothing stays behind."""

import asyncio
import random

import httpx
import pytest

from sglang_pd_fabric.tools.demo.client import ask_all, request_of
from sglang_pd_fabric.tools.demo.cluster import ClusterOptions
from sglang_pd_fabric.tools.demo.compare import differences
from sglang_pd_fabric.tools.demo.metrics import sample_sums
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.processes import Server
from sglang_pd_fabric.tools.demo.prompts import Question, make_questions, text

from .conftest import Reference

pytestmark = pytest.mark.sglang

ROUNDS, AT_ONCE = 6, 8
PATIENCE = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)  # seconds after which a client hangs up
OCCUPIED = (
    "sglang:num_running_reqs",
    "sglang:num_prefill_inflight_queue_reqs",
    "sglang:num_prefill_bootstrap_queue_reqs",
    "sglang:num_decode_prealloc_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
    "sglang:num_decode_deferred_kv_release_reqs",
)


async def hang_up_many_times(url: str) -> int:
    """Returns how many requests were really cut off."""
    source = random.Random(7)

    async def impatient(client: httpx.AsyncClient, seed: int) -> bool:
        prompt = text(source.choice((50, 600, 1200, 1500)), 10_000 + seed)
        question = Question("impatient", prompt, stream=seed % 2 == 1, answer_tokens=48)
        path, body = request_of(question)
        try:
            await asyncio.wait_for(client.post(url + path, json=body), source.choice(PATIENCE))
        except TimeoutError:
            return True
        return False

    async with httpx.AsyncClient(timeout=60) as client:
        cut = 0
        for number in range(ROUNDS):
            wave = (impatient(client, number * AT_ONCE + index) for index in range(AT_ONCE))
            cut += sum(await asyncio.gather(*wave))
        return cut


def occupied(server: Server) -> dict[str, float]:
    sums = sample_sums(httpx.get(f"{server.url}/metrics", timeout=30, follow_redirects=True).text)
    return {name: sums[name] for name in OCCUPIED if sums.get(name)}


def test_answers_are_right_and_queues_empty_after_many_clients_hung_up(
    pool: Pool, reference: Reference, backend: str
) -> None:
    questions = make_questions(12, seed=5)
    expected = reference("gqa", questions)
    cluster = pool.cluster(ClusterOptions(model="gqa", backend=backend, provider="tcp", page_size=64))
    assert asyncio.run(hang_up_many_times(cluster.url)) > ROUNDS
    for _ in range(2):  # the second time the first round's pages are in use again
        assert not differences(questions, expected, ask_all(cluster.url, questions, at_once=4))
    for server in (*cluster.prefills, *cluster.decodes):
        assert server.ready()
        assert not occupied(server)
