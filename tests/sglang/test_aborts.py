"""Clients that hang up at any moment: nobody else's answer changes, and nothing stays behind."""

import asyncio
import json
import random
import secrets
from collections.abc import Iterator

import httpx
import pytest

from sglang_pd_fabric.tools.demo.client import ask_all, request_of
from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions
from sglang_pd_fabric.tools.demo.compare import differences
from sglang_pd_fabric.tools.demo.metrics import sample_sums
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.processes import Server
from sglang_pd_fabric.tools.demo.prompts import Question, make_questions, text

from .asking import Body, bootstrap, post
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


# More than any machine makes in the second before an abort, and no more than fits the context.
ANSWER_TOKENS = 6000
OVER = ("error", "aborted")


class Asked:
    """A request at one side: ``begun`` with its first token; ``end`` is how it has ended."""

    def __init__(self, client: httpx.AsyncClient, server: Server, body: Body) -> None:
        self.tokens: list[int] = []
        self.begun = asyncio.Event()
        self._client, self._url, self._body = client, server.url, {**body, "stream": True}
        self.end = asyncio.create_task(self._read())

    async def _read(self) -> str:
        finish = None
        async with self._client.stream("POST", f"{self._url}/generate", json=self._body) as response:
            if response.status_code != httpx.codes.OK:
                return "error"
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return "error"
                self.tokens = event["output_ids"]
                finish = event["meta_info"]["finish_reason"]
                if self.tokens:
                    self.begun.set()
        assert finish, "the stream has broken off"
        return {"abort": "aborted", "length": "answered"}[finish["type"]]

    async def post_abort(self) -> None:
        reply = await self._client.post(f"{self._url}/abort_request", json={"rid": self._body["rid"]})
        assert reply.status_code == httpx.codes.OK

    async def abort(self) -> str:
        """SGLang forgets the abort of a request that it does not know yet; it takes one of each, once."""
        while not self.end.done():
            await self.post_abort()
            await asyncio.wait([self.end], timeout=0.1)
        return await self.end

    async def has_begun_or_ended(self) -> None:
        begun = asyncio.create_task(self.begun.wait())
        await asyncio.wait([self.end, begun], return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()


def long_answer(port: int) -> Body:
    sampling = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
    body = {"text": text(1400, secrets.randbits(30)), "rid": f"aborted-{secrets.token_hex(8)}"}
    return body | {"sampling_params": sampling} | bootstrap(port, random.randrange(1, 1 << 63))


@pytest.fixture
def pair(pool: Pool, reference: Reference) -> Iterator[Cluster]:
    """The shared servers. Afterwards their answers are right, they hold nothing, and nobody was surprised."""
    questions = make_questions(6, seed=6)
    expected = reference("gqa", questions)
    cluster = pool.cluster(OPTIONS)
    servers = (*cluster.prefills, *cluster.decodes)
    marks = [len(server.log.read_text()) for server in servers]
    wait_for(lambda: not slots_used(cluster.decodes[0]))
    yield cluster
    assert not differences(questions, expected, ask_all(cluster.url, questions, at_once=4))
    for server, mark in zip(servers, marks, strict=True):
        wait_for(server.ready)
        wait_for(lambda one=server: not occupied(one))
        said = server.log.read_text()[mark:]
        assert "Dropped a" not in said, "a message of our own was taken for foreign"
        assert "Traceback" not in said


def test_a_request_that_is_aborted_at_either_side_in_any_phase_ends_on_both(
    pair: Cluster, pool: Pool
) -> None:
    """Before it is queued, while it waits, in mid-transfer, while it answers. 10 seconds.

    An abort that meets the request at a side ends it there and on the other. Only a decode that has all of
    the pages goes on when prefill is told; then its answer is the right one.
    """
    (prefill,), (decode,) = pair.prefills, pair.decodes
    had_all: list[tuple[Body, list[int]]] = []

    async def one(client: httpx.AsyncClient, side: str, delay: float) -> None:
        body = long_answer(pair.bootstrap_ports[0])
        first, answer = (Asked(client, server, body) for server in (prefill, decode))
        await asyncio.sleep(delay)
        if side == "prefill" and await first.abort() in OVER:
            await answer.has_begun_or_ended()
            if not answer.begun.is_set():
                assert await answer.end in OVER
                return
            had_all.append((body, answer.tokens[:8]))
        # Also when prefill was done with its part before it was told.
        assert await answer.abort() in OVER
        await first.end

    async def every() -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            cases = [one(client, side, delay) for side in ("prefill", "decode") for delay in (0, *PATIENCE)]
            await asyncio.gather(*cases)

    asyncio.run(every())
    for body, tokens in had_all:
        sampling = {"temperature": 0, "max_new_tokens": len(tokens), "ignore_eos": True}
        right = post(
            f"{pool.ordinary('gqa').url}/generate", {"text": body["text"], "sampling_params": sampling}
        )
        assert tokens == right.body["output_ids"]


def slots_used(decode: Server) -> float:
    page = httpx.get(f"{decode.url}/metrics", timeout=30, follow_redirects=True).text
    return sample_sums(page).get("sglang_pd_fabric:slots_used", 0.0)


@pytest.mark.parametrize("aborted", ["on prefill, decode unasked", "on decode, prefill unasked"])
def test_an_abort_before_the_other_side_has_the_request_ends_it_on_both(pair: Cluster, aborted: str) -> None:
    """Prefill waits for decode's Pull; decode has sent its Pull and waits for the pages. A second each."""
    servers = [pair.prefills[0], pair.decodes[0]]
    if aborted.startswith("on decode"):
        servers.reverse()

    async def ends() -> tuple[str, str]:
        body = long_answer(pair.bootstrap_ports[0])
        async with httpx.AsyncClient(timeout=60) as client:
            first = Asked(client, servers[0], body)
            if servers[0] is pair.decodes[0]:
                await asyncio.to_thread(wait_for, lambda: slots_used(servers[0]))
            told = await first.abort()
            return told, await Asked(client, servers[1], body).end

    for end in asyncio.run(ends()):
        assert end in OVER


@pytest.mark.parametrize("begun", [False, True], ids=["before decode's first step", "while it answers"])
def test_an_abort_when_decode_has_all_of_the_pages_ends_the_answer(pair: Cluster, begun: bool) -> None:
    """Decode stands still from its Pull until prefill has answered and the abort is there. A second each."""
    prefill, decode = pair.prefills[0], pair.decodes[0]

    async def ends() -> tuple[str, str, int]:
        body = long_answer(pair.bootstrap_ports[0])
        async with httpx.AsyncClient(timeout=60) as client:
            answer = Asked(client, decode, body)
            await asyncio.to_thread(wait_for, lambda: slots_used(decode))
            await client.post(f"{decode.url}/pause_generation", json={"mode": "in_place"})
            try:
                first = await Asked(client, prefill, body).end
                if not begun:
                    await answer.post_abort()
            finally:
                await client.post(f"{decode.url}/continue_generation", json={})
            if begun:
                await answer.begun.wait()
                return first, await answer.abort(), len(answer.tokens)
            return first, await answer.end, len(answer.tokens)

    first, end, tokens = asyncio.run(ends())
    assert first == "answered"
    assert end in OVER
    assert (tokens > 0) == begun
