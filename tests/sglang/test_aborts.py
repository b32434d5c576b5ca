"""Clients that hang up at any moment: nobody else's answer changes, and nothing stays behind."""

import asyncio
import random
import secrets

import httpx
import pytest

from sglang_pd_fabric.tools.demo.client import ask_all, request_of
from sglang_pd_fabric.tools.demo.cluster import ClusterOptions
from sglang_pd_fabric.tools.demo.compare import differences
from sglang_pd_fabric.tools.demo.metrics import sample_sums
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.processes import Server
from sglang_pd_fabric.tools.demo.prompts import Question, make_questions, text

from .asking import Outcome, bootstrap, post_together
from .conftest import Reference
from .weak import OPTIONS, wait_for

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
        wait_for(server.ready)
        wait_for(lambda one=server: not occupied(one))


def is_over(outcome: Outcome) -> str:
    """How a request has ended: with an error, aborted, or as a whole answer."""
    if outcome.error:
        return "error"
    finish = str(outcome.body["meta_info"]["finish_reason"]["type"])
    assert finish in ("abort", "length"), outcome
    return "aborted" if finish == "abort" else "answered"


def test_a_request_that_is_aborted_at_either_side_in_any_phase_ends_on_both(
    pool: Pool, reference: Reference
) -> None:
    """Before it is queued, while it waits, in mid-transfer, while it answers. 10 seconds."""
    questions = make_questions(6, seed=6)
    expected = reference("gqa", questions)
    cluster = pool.cluster(OPTIONS)
    (prefill,), (decode,) = cluster.prefills, cluster.decodes
    marks = {server.name: len(server.log.read_text()) for server in (prefill, decode)}

    async def one(client: httpx.AsyncClient, side: Server, delay: float) -> str:
        rid = f"aborted-{secrets.token_hex(8)}"
        body = {"text": text(1400, secrets.randbits(30)), "rid": rid}
        body |= {"sampling_params": {"temperature": 0, "max_new_tokens": 300, "ignore_eos": True}}
        body |= bootstrap(cluster.bootstrap_ports[0], random.randrange(1, 1 << 63))
        both = post_together([(f"{server.url}/generate", body) for server in (prefill, decode)])
        asked = asyncio.create_task(both)
        await asyncio.sleep(delay)
        await client.post(f"{side.url}/abort_request", json={"rid": rid})
        first, answer = await asked
        is_over(first)
        return is_over(answer)

    async def every() -> list[str]:
        async with httpx.AsyncClient(timeout=60) as client:
            cases = [one(client, side, delay) for side in (prefill, decode) for delay in (0, *PATIENCE)]
            return await asyncio.gather(*cases)

    assert set(asyncio.run(every())) & {"error", "aborted"}
    assert not differences(questions, expected, ask_all(cluster.url, questions, at_once=4))
    for server in (prefill, decode):
        wait_for(server.ready)
        wait_for(lambda one=server: not occupied(one))
        said = server.log.read_text()[marks[server.name] :]
        assert "Dropped a" not in said, "a message of our own was taken for foreign"
        assert "Traceback" not in said
