"""Decode samples the first token itself: answers are the ordinary server's, and prefill samples nothing.

All tests of the default run share the servers of `test_end_to_end` and `test_wire`; they take some 60 s.
"""

import json
from collections.abc import Callable

import httpx
import jsonschema
import pytest

from sglang_pd_fabric.tools.demo.cluster import ClusterOptions
from sglang_pd_fabric.tools.demo.metrics import sample_sums
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.processes import Server
from sglang_pd_fabric.tools.demo.prompts import Question, text
from sglang_pd_fabric.tools.tiny.config import Model

from .bodies import STOCK, Case, ask, differences, generate, stock
from .direct import ask_both
from .first_token_cases import GRAMMAR_CASES, LENGTH_CASES, NO_SPACE, PROMPT, plain_cases
from .schemas import make_schemas

pytestmark = pytest.mark.sglang

OPTIONS: dict[Model, ClusterOptions] = {
    "gqa": ClusterOptions(model="gqa", provider="tcp", page_size=64),
    "mla": ClusterOptions(model="mla", provider="shm", page_size=64),
}
MODELS = ["gqa", pytest.param("mla", marks=pytest.mark.nightly)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_whatever_is_asked_of_it_the_first_token_is_the_ordinary_servers(
    pool: Pool, model: Model, mode: str
) -> None:
    """Token for token, log-probabilities to `TOLERANCE`. SGLang's own pairs are compared where exact.

    Eight at a time they come once more, when prefill has them in its prefix cache. Batches of other sizes sum
    in another order, in an ordinary server too; and its penalties then depend on who else is there.
    """
    ordinary, cluster = pool.ordinary(model), pool.cluster(OPTIONS[model])
    (plain,) = ask(ordinary.url, [generate("plain", PROMPT)])
    cases = [*LENGTH_CASES, *plain_cases(plain.body["text"], plain.body["output_ids"]), *GRAMMAR_CASES]
    if mode == "prefill":
        cases = [stock(case) for case in cases if case.stock_too]
    expected = ask(ordinary.url, cases)
    assert not differences(cases, expected, ask(cluster.url, cases))
    again = [case for case in cases if case.stock_too]
    alone = [got for case, got in zip(cases, expected, strict=True) if case.stock_too]
    assert not differences(again, alone, ask(cluster.url, again, at_once=8))


@pytest.mark.parametrize("model", MODELS)
def test_fifty_schemas_give_valid_answers_and_the_ordinary_servers(pool: Pool, model: Model) -> None:
    """Through the router, eight at a time, with schemas that no server has seen."""
    schemas = make_schemas(50, seed=11)
    cases = [
        generate(
            f"schema {number}",
            text(20 + 5 * number, 4_500 + number),
            json_schema=json.dumps(schema),
            logit_bias=NO_SPACE,
            tokens=160,
        )
        for number, schema in enumerate(schemas)
    ]
    expected = ask(pool.ordinary(model).url, cases, at_once=8)
    actual = ask(pool.cluster(OPTIONS[model]).url, cases, at_once=8)
    assert not differences(cases, expected, actual)
    for schema, answer in zip(schemas, actual, strict=True):
        jsonschema.validate(json.loads(answer.body["text"]), schema)


def counted(server: Server) -> dict[str, float]:
    return sample_sums(httpx.get(f"{server.url}/metrics", timeout=30, follow_redirects=True).text)


def growth(servers: list[Server], act: Callable[[], object]) -> list[Callable[[str], float]]:
    """By how much each server's counters have grown with what was done."""
    before = [counted(server) for server in servers]
    act()
    after = [counted(server) for server in servers]
    return [
        lambda name, late=late, early=early: late.get(name, 0.0) - early.get(name, 0.0)
        for late, early in zip(after, before, strict=True)
    ]


@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_prefill_compiles_no_grammar_and_runs_no_sampler(pool: Pool, mode: str) -> None:
    """And it does both where the first token is prefill's, so the counters do count."""
    cluster = pool.cluster(OPTIONS["gqa"])
    cases = [
        generate(f"{mode} {number}", text(300, 4_700 + number), regex=f"[a-c]{{{number + 4}}}", tokens=6)
        for number in range(4)
    ]
    cases = [stock(case) for case in cases] if mode == "prefill" else cases
    servers = [*cluster.prefills, *cluster.decodes]
    prefill, decode = growth(servers, lambda: ask(cluster.url, cases, at_once=4))
    assert decode("sglang_pd_fabric:grammars_total") == len(cases)
    assert decode("sglang_pd_fabric:sampled_rows_total") > 0
    mine = 0 if mode == "decode" else len(cases)
    assert prefill("sglang_pd_fabric:grammars_total") == mine
    assert (prefill("sglang_pd_fabric:sampled_rows_total") > 0) == (mode == "prefill")


def test_a_metric_says_whose_the_first_tokens_are_and_why(pool: Pool) -> None:
    cluster = pool.cluster(OPTIONS["gqa"])
    cases = [
        generate("usual", text(40, 1)),
        generate("one token", "x"),
        generate("nothing wanted", text(40, 2), tokens=0),
        generate("input", text(40, 3), return_logprob=True, logprob_start_len=0),
        stock(generate("asked", text(40, 4))),
    ]
    reasons = {"": 1, "one_token": 1, "no_output": 1, "input_logprobs": 1, "asked": 1}

    def by_reason(server: Server) -> dict[str, float]:
        from prometheus_client.parser import text_string_to_metric_families

        page = httpx.get(f"{server.url}/metrics", timeout=30, follow_redirects=True).text
        return {
            sample.labels["reason"]: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "sglang_pd_fabric:first_token_total"
        }

    servers = [*cluster.prefills, *cluster.decodes]
    before = [by_reason(server) for server in servers]
    ask(cluster.url, cases)
    for server, early in zip(servers, before, strict=True):
        late = by_reason(server)
        assert {reason: late[reason] - early.get(reason, 0) for reason in reasons} == reasons


def streamed(url: str, case: Case) -> list[dict[str, object]]:
    body = {**case.body, "stream": True}
    (got,) = ask(url, [case._replace(body=body)])
    lines = [line.removeprefix("data: ") for line in got.body.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_no_chunk_of_a_stream_is_empty_and_times_are_noted_once(pool: Pool) -> None:
    """The first chunk has a token, each has more than the one before, and the first token is timed once."""
    ordinary, cluster = pool.ordinary("gqa"), pool.cluster(OPTIONS["gqa"])
    case = generate("stream", text(200, 4_800), tokens=8)
    chunks: list[list[dict[str, object]]] = []
    decode, plain = growth(
        [cluster.decodes[0], ordinary.server],
        lambda: chunks.extend(streamed(url, case) for url in (cluster.url, ordinary.url)),
    )
    ours, theirs = chunks
    lengths = [len(chunk["output_ids"]) for chunk in ours]  # type: ignore[arg-type]
    assert lengths[0] >= 1
    assert lengths == sorted(set(lengths))
    assert (ours[-1]["text"], ours[-1]["output_ids"]) == (theirs[-1]["text"], theirs[-1]["output_ids"])
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "inter_token_latency_seconds"):
        assert decode(f"sglang:{name}_count") == plain(f"sglang:{name}_count"), name
    assert decode("sglang:time_to_first_token_seconds_count") == 1
    assert decode("sglang:generation_tokens_total") == plain("sglang:generation_tokens_total") == 8


def test_servers_that_disagree_fail_the_request_and_say_so(pool: Pool) -> None:
    cluster = pool.cluster(OPTIONS["gqa"])
    replies = ask_both(
        cluster.prefills[0].url,
        cluster.decodes[0].url,
        cluster.bootstrap_ports[0],
        Question("torn", text(100, 5)),
        sampling=({}, {"custom_params": STOCK}),
    )
    for reply in replies:
        assert reply.status != httpx.codes.OK
        assert "prefill leaves the first token to decode, decode to prefill" in reply.error
        assert "SGLANG_PD_FABRIC_FIRST_TOKEN" in reply.error


def test_a_grammar_that_decode_refuses_ends_the_request_on_prefill_too(pool: Pool) -> None:
    """Prefill has not looked at the grammar, and would wait for a Pull that never comes."""
    cluster = pool.cluster(OPTIONS["gqa"])
    replies = ask_both(
        cluster.prefills[0].url,
        cluster.decodes[0].url,
        cluster.bootstrap_ports[0],
        Question("wrong", text(100, 6)),
        seconds=60,
        sampling=({"regex": "("}, {"regex": "("}),
    )
    assert [reply.status for reply in replies] == [httpx.codes.BAD_REQUEST] * 2
    assert "grammar" in replies.prefill.error
