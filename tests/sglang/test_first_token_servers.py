"""The first-token mode on servers of its own: retraction, decode's prefix cache, parsers, the switch.

Nightly: each test starts a pair of servers, which takes some 45 s.
"""

import asyncio
from typing import Any

import httpx
import pytest

from sglang_pd_fabric.settings import variable
from sglang_pd_fabric.tools.demo.client import REQUEST_SECONDS, ask_all
from sglang_pd_fabric.tools.demo.cluster import ClusterOptions, Ordinary
from sglang_pd_fabric.tools.demo.compare import LOGPROB_TOLERANCE
from sglang_pd_fabric.tools.demo.compare import differences as answers_that_differ
from sglang_pd_fabric.tools.demo.metrics import sample_sums
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import make_questions, text
from sglang_pd_fabric.tools.demo.servers import ServerOptions
from sglang_pd_fabric.tools.tiny.config import Model

from .bodies import Body, Case, ask, differences, generate, stock
from .conftest import Reference
from .first_token_cases import (
    DRAWN_FROM_ALL,
    DRAWN_FROM_FEW,
    GRAMMAR_CASES,
    LENGTH_CASES,
    LOGPROBS,
    PROMPT,
    plain_cases,
)

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]


def metric(url: str, name: str) -> float:
    page = httpx.get(f"{url}/metrics", timeout=30, follow_redirects=True).text
    return sample_sums(page).get(name, 0.0)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
def test_requests_that_are_retracted_before_their_first_token_answer_the_same(
    pool: Pool, reference: Reference, overlap: bool
) -> None:
    """Decode retracts on purpose, every other step, whoever is there."""
    env = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "2"}
    cluster = pool.cluster(ClusterOptions(model="gqa", page_size=16, overlap=overlap, env=env))
    questions = make_questions(16, seed=31)
    answers = ask_all(cluster.url, questions, at_once=8)
    assert not answers_that_differ(questions, reference("gqa", questions), answers)
    cases = [case for case in GRAMMAR_CASES if case.path == "/generate"]
    assert not differences(
        cases,
        ask(pool.ordinary("gqa").url, cases),
        ask(cluster.url, cases, at_once=len(cases)),
        LOGPROB_TOLERANCE,
    )
    log = (cluster.logs / "decode-0.log").read_text(errors="replace")
    assert log.count("Testing retraction") > 5


@pytest.mark.parametrize("page_size", [1, 16])
def test_decodes_own_prefix_cache_keeps_the_last_token_out(pool: Pool, page_size: int) -> None:
    """Everything is asked three times, so decode has whole prompts in its cache, and answers from before."""
    flags = ("--disaggregation-decode-enable-radix-cache",)
    cluster = pool.cluster(
        ClusterOptions(model="gqa", page_size=page_size, overlap=page_size == 1, decode_flags=flags)
    )
    expected = ask(pool.ordinary("gqa").url, LENGTH_CASES)
    for _ in range(3):
        assert not differences(
            LENGTH_CASES, expected, ask(cluster.url, LENGTH_CASES, at_once=4), LOGPROB_TOLERANCE
        )
    longer = [
        generate(f"{case.name} and on", case.body["text"] + text(30, 6), **LOGPROBS) for case in LENGTH_CASES
    ]
    assert not differences(
        longer, ask(pool.ordinary("gqa").url, longer), ask(cluster.url, longer, at_once=4), LOGPROB_TOLERANCE
    )
    assert metric(cluster.decodes[0].url, "sglang:cached_tokens_total") > 0


@pytest.mark.parametrize("model", ["gqa", "mla"])
def test_the_switch_gives_stock_behaviour(pool: Pool, model: Model) -> None:
    env = {variable("first_token"): "prefill"}
    cluster = pool.cluster(ClusterOptions(model=model, page_size=64, env=env))
    ordinary = pool.ordinary(model)
    (plain,) = ask(ordinary.url, [generate("plain", PROMPT)])
    every = [*LENGTH_CASES, *plain_cases(plain.body["text"], plain.body["output_ids"]), *GRAMMAR_CASES]
    cases = [case for case in every if case.stock_too]
    assert not differences(cases, ask(ordinary.url, cases), ask(cluster.url, cases))
    assert metric(cluster.prefills[0].url, "sglang_pd_fabric:grammars_total") > 0


def test_without_the_overlap_scheduler_it_is_the_same(pool: Pool) -> None:
    """The ordinary server overlaps, and counts penalties one token late: those are left out."""
    cluster = pool.cluster(ClusterOptions(model="gqa", page_size=64, overlap=False))
    ordinary = pool.ordinary("gqa")
    (plain,) = ask(ordinary.url, [generate("plain", PROMPT)])
    every = [*LENGTH_CASES, *plain_cases(plain.body["text"], plain.body["output_ids"]), *GRAMMAR_CASES]
    late = {"frequency", "presence", "repetition", "all penalties"}
    cases = [case for case in every if case.name not in late]
    assert not differences(cases, ask(ordinary.url, cases), ask(cluster.url, cases))


def test_seeds_draw_the_ordinary_servers_tokens(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whoever draws the first token: the seed is hashed with the position of the last prompt token. 90 s."""
    flags = ("--enable-deterministic-inference",)
    options = ServerOptions(flags=flags, page_size=1, chunked_prefill_size=8192)
    lists = (DRAWN_FROM_ALL, DRAWN_FROM_FEW)
    with Ordinary(options, tmp_path_factory.mktemp("seeds")) as ordinary:
        expected = [ask(ordinary.url, cases) for cases in lists]
    drawn = [got.body["output_ids"] for answers in expected for got in answers]
    assert len({tuple(ids) for ids in drawn}) == len(drawn)
    assert len({ids[0] for ids in drawn}) > 1
    cluster = pool.cluster(ClusterOptions(model="gqa", page_size=64, flags=flags))
    for cases, right in zip(lists, expected, strict=True):
        for either in (cases, [stock(case) for case in cases]):
            assert not differences(either, right, ask(cluster.url, either))
            assert not differences(either, right, ask(cluster.url, either, at_once=4), LOGPROB_TOLERANCE)


PARSERS = ("--reasoning-parser", "qwen3", "--tool-call-parser", "qwen25")
TOOL = {
    "type": "function",
    "function": {
        "name": "move",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string", "enum": ["left", "right"]}},
            "required": ["to"],
            "additionalProperties": False,
        },
    },
}


def chat(name: str, **more: Any) -> Case:
    body: Body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": PROMPT}],
        "temperature": 0,
        "max_tokens": 40,
        **more,
    }
    return Case(name, body, "/v1/chat/completions")


def test_reasoning_and_tool_parsers_see_the_same(
    pool: Pool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cases = [
        chat("plain"),
        chat("separate reasoning", separate_reasoning=True),
        chat("no thinking", chat_template_kwargs={"enable_thinking": False}),
        chat("a tool is required", tools=[TOOL], tool_choice="required"),
        chat("this tool", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "move"}}),
        chat("a tool if it likes", tools=[TOOL], tool_choice="auto"),
    ]
    options = ServerOptions(flags=PARSERS, page_size=1, chunked_prefill_size=8192)
    logs = tmp_path_factory.mktemp("parsers")
    with Ordinary(options, logs) as ordinary:
        expected = ask(ordinary.url, cases)
    cluster = pool.cluster(ClusterOptions(model="gqa", page_size=64, flags=PARSERS))
    assert not chat_differences(cases, expected, ask(cluster.url, cases))


def chat_differences(cases: list[Case], expected: list[Any], actual: list[Any]) -> list[str]:
    """Calls have random ids."""
    for got in (*expected, *actual):
        for choice in got.body.get("choices", ()):
            for call in choice["message"].get("tool_calls") or ():
                call["id"] = ""
    return differences(cases, expected, actual)


def test_a_pause_that_computes_everything_anew_goes_on_where_it_was(pool: Pool) -> None:
    """SGLang's `pause_generation` with `retract`: prefill computes prompt and output again, as in stock."""
    cluster, ordinary = pool.cluster(ClusterOptions(model="gqa", page_size=64)), pool.ordinary("gqa")
    cases = [generate(f"paused {n}", text(60 + 40 * n, 6_000 + n), tokens=200) for n in range(4)]
    expected = ask(ordinary.url, cases)
    decode = cluster.decodes[0].url

    async def interrupted() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=REQUEST_SECONDS) as client:
            asked = [asyncio.create_task(client.post(cluster.url + c.path, json=c.body)) for c in cases]
            while not await running(client):
                assert not all(task.done() for task in asked)
            for _ in range(2):
                assert (await client.post(f"{decode}/pause_generation", json={"mode": "retract"})).is_success
                assert (await client.post(f"{decode}/continue_generation", json={})).is_success
            return await asyncio.gather(*asked)

    async def running(client: httpx.AsyncClient) -> bool:
        page = (await client.get(f"{decode}/metrics", follow_redirects=True)).text
        return sample_sums(page).get("sglang:num_running_reqs", 0) > 0

    answers = asyncio.run(interrupted())
    assert [answer.json()["text"] for answer in answers] == [got.body["text"] for got in expected]
