"""What clients may ask for, through the router, against the ordinary server: the answer is the same.

Shares the cluster of test_aborts.py and the ordinary server; takes some 30 s beyond them.
"""

import json
import random
from typing import Any

import pytest

from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import text

from .asking import Body, Outcome, bootstrap, post, post_all
from .bodies import TOLERANCE
from .weak import wait_for

pytestmark = pytest.mark.sglang

GENERATE, CHAT, COMPLETIONS = "/generate", "/v1/chat/completions", "/v1/completions"
PROMPT = text(120, 4242)


class Both:
    """The cluster behind its router, and the ordinary server."""

    def __init__(self, router: str, ordinary: str, prefill: str, decode: str, port: int) -> None:
        self.router, self.ordinary, self.prefill, self.decode, self.port = (
            router,
            ordinary,
            prefill,
            decode,
            port,
        )

    def ask(self, path: str, body: Body) -> tuple[Outcome, Outcome]:
        """The ordinary server's answer, and the cluster's."""
        return post(self.ordinary + path, body), post(self.router + path, body)

    def to_both(self, body: Body, room: Any) -> list[Outcome]:
        """Prefill's and decode's answer to the same request in a room of our choice."""
        body = {**body, **bootstrap(self.port, room)}
        return post_all([(self.prefill + GENERATE, body), (self.decode + GENERATE, body)])


@pytest.fixture(scope="module")
def cluster(pool: Pool) -> Cluster:
    return pool.cluster(ClusterOptions(model="gqa", provider="tcp", page_size=64))


@pytest.fixture(scope="module")
def both(pool: Pool, cluster: Cluster) -> Both:
    ordinary = pool.ordinary("gqa").url
    return Both(
        cluster.url, ordinary, cluster.prefills[0].url, cluster.decodes[0].url, cluster.bootstrap_ports[0]
    )


def generate(stream: bool = False, prompt: Any = PROMPT, **sampling: Any) -> Body:
    return {"text": prompt, "stream": stream, "sampling_params": {"temperature": 0, **sampling}}


def essence(answer: Any) -> Any:
    """What must be the same of an answer to /generate."""
    if isinstance(answer, list):
        return [essence(each) for each in answer]
    meta = answer["meta_info"]
    counts = {name: meta[name] for name in ("prompt_tokens", "completion_tokens", "finish_reason")}
    return answer["text"], answer["output_ids"], counts


def assert_same(expected: Outcome, actual: Outcome, stream: bool) -> None:
    assert (actual.status, actual.error) == (expected.status, expected.error)
    assert essence(actual.last) == essence(expected.last)
    assert actual.ended == stream


# -- C22: few tokens, early ends ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def first(both: Both) -> Any:
    """The first tokens of the ordinary answer to PROMPT."""
    return post(both.ordinary + GENERATE, generate(max_new_tokens=6)).body


ENDS = {
    "no token": lambda _first: {"max_new_tokens": 0},
    "one token": lambda _first: {"max_new_tokens": 1},
    "two tokens": lambda _first: {"max_new_tokens": 2},
    "stop token first": lambda first: {"max_new_tokens": 9, "stop_token_ids": first["output_ids"][:1]},
    "stop token second": lambda first: {"max_new_tokens": 9, "stop_token_ids": first["output_ids"][1:2]},
    "stop string at the first token": lambda first: {"max_new_tokens": 9, "stop": first["text"][:1]},
    "stop string over two tokens": lambda first: {"max_new_tokens": 9, "stop": first["text"][:2]},
    "at least some": lambda first: {
        "max_new_tokens": 9,
        "min_new_tokens": 4,
        "stop_token_ids": first["output_ids"],
    },
    "end of text first": lambda _first: {"max_new_tokens": 9, "logit_bias": {"END": 100}},
    "end of text ignored": lambda _first: {
        "max_new_tokens": 5,
        "ignore_eos": True,
        "logit_bias": {"END": 100},
    },
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("end", list(ENDS))
def test_answers_end_where_the_ordinary_server_ends_them(
    both: Both, first: Any, end: str, stream: bool
) -> None:
    sampling = ENDS[end](first)
    if "logit_bias" in sampling:
        from sglang_pd_fabric.tools.tiny.config import END_TOKEN

        sampling["logit_bias"] = {str(END_TOKEN): 100}
    assert_same(*both.ask(GENERATE, generate(stream, **sampling)), stream)


# -- C23, C24: several answers, several prompts ------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("samples", [2, 4])
@pytest.mark.parametrize("path", [GENERATE, CHAT, COMPLETIONS])
def test_several_samples_of_one_prompt(both: Both, path: str, samples: int, stream: bool) -> None:
    bodies: dict[str, Body] = {
        GENERATE: generate(stream, max_new_tokens=8, n=samples),
        CHAT: {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8},
        COMPLETIONS: {"prompt": PROMPT, "max_tokens": 8},
    }
    body = bodies[path] | ({} if path == GENERATE else {"temperature": 0, "n": samples, "stream": stream})
    expected, actual = both.ask(path, body | {"model": "tiny"})
    assert not expected.error
    assert not actual.error
    assert sorted(texts(actual)) == sorted(texts(expected))
    assert len(texts(actual)) == samples


def texts(outcome: Outcome) -> list[str]:
    """The text of each sample, in the order of their numbers."""
    if not outcome.events:
        if isinstance(outcome.body, list):
            return [each["text"] for each in outcome.body]
        return [choice.get("text") or choice["message"]["content"] for choice in outcome.body["choices"]]
    found: dict[int, str] = {}
    for event in outcome.events:
        if "text" in event:
            found[event["index"]] = event["text"]
        for choice in event.get("choices", ()):
            piece = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            found[choice["index"]] = found.get(choice["index"], "") + piece
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize("count", [1, 2, 33])
def test_prompts_in_one_request_are_answered_in_their_order(both: Both, count: int) -> None:
    prompts = [text(20 + 9 * index, 700 + index) for index in range(count)]
    assert_same(*both.ask(GENERATE, generate(prompt=prompts, max_new_tokens=6)), stream=False)


def test_token_ids_in_one_request(both: Both) -> None:
    ids = [[40 + (index + at) % 60 for at in range(10 + index)] for index in range(3)]
    body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 6}}
    assert_same(*both.ask(GENERATE, body), stream=False)


@pytest.mark.parametrize("bad", ["empty", "too long"])
def test_one_bad_prompt_among_several_is_a_client_error_and_hurts_no_other(both: Both, bad: str) -> None:
    wrong = "" if bad == "empty" else "x" * 50_000
    outcome = post(both.router + GENERATE, generate(prompt=[PROMPT, wrong, PROMPT], max_new_tokens=4))
    assert outcome.status == 400
    for reply in both.to_both(generate(prompt=wrong, max_new_tokens=4), random.randrange(1, 1 << 63)):
        assert reply.status == 400
    assert_same(*both.ask(GENERATE, generate(max_new_tokens=4)), stream=False)


# -- C26: grammars -----------------------------------------------------------------------------------

PROPERTIES = {"a": {"type": "integer"}, "b": {"type": "boolean"}}
SCHEMA = json.dumps({"type": "object", "properties": PROPERTIES, "required": ["a", "b"]})
GRAMMARS: dict[str, Body] = {
    "json": {"json_schema": SCHEMA},
    "regex": {"regex": "(page|cache)-[0-9]{3}"},
    "ebnf": {"ebnf": 'root ::= "yes " [a-f]+ | "no"'},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("limit", [1, 2, 64])
@pytest.mark.parametrize("grammar", list(GRAMMARS))
def test_answers_in_a_grammar(both: Both, grammar: str, limit: int, stream: bool) -> None:
    body = generate(stream, max_new_tokens=limit, **GRAMMARS[grammar])
    assert_same(*both.ask(GENERATE, body), stream)


def test_eight_answers_in_a_grammar_at_once(both: Both) -> None:
    bodies = [
        generate(prompt=text(60, 300 + index), max_new_tokens=32, json_schema=SCHEMA) for index in range(8)
    ]
    expected = [post(both.ordinary + GENERATE, body) for body in bodies]
    for one, other in zip(
        expected, post_all([(both.router + GENERATE, body) for body in bodies]), strict=True
    ):
        assert_same(one, other, stream=False)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "wrong", [{"json_schema": '{"type": 7}'}, {"regex": "("}, {"ebnf": "root ::= nowhere"}]
)
def test_a_wrong_grammar_is_the_clients_error_at_both_ends(both: Both, wrong: Body, stream: bool) -> None:
    body = generate(stream, max_new_tokens=8, **wrong)
    expected, actual = both.ask(GENERATE, body)
    assert actual.error
    assert not actual.ended
    if not stream:  # the router answers a stream with 200 before it has asked anybody
        assert actual.status == expected.status == 400
    for reply in both.to_both(body, random.randrange(1, 1 << 63)):
        assert reply.status == 400, reply


# -- C27: log-probabilities --------------------------------------------------------------------------

LOGPROBS: dict[str, Body] = {
    "output only": {},
    "from the start": {"logprob_start_len": 0},
    "from the middle": {"logprob_start_len": 60},
    "none of the prompt": {"logprob_start_len": -1},
    "one more": {"top_logprobs_num": 1},
    "five": {"top_logprobs_num": 5, "logprob_start_len": 100},
    "twenty": {"top_logprobs_num": 20},
    "of named tokens": {"token_ids_logprob": [65, 66]},
}


@pytest.mark.parametrize("prompt", [PROMPT, text(700, 77)], ids=["short", "chunked"])
@pytest.mark.parametrize("what", list(LOGPROBS))
def test_log_probabilities_of_both_sides_are_the_ordinary_servers(both: Both, what: str, prompt: str) -> None:
    """Output's from decode; the prompt's from prefill. The second time prefill's prefix cache is hit."""
    body = generate(prompt=prompt, max_new_tokens=6) | {"return_logprob": True, **LOGPROBS[what]}
    expected = post(both.ordinary + GENERATE, body).body["meta_info"]
    assert bool(expected.get("output_token_ids_logprobs")) == ("token_ids_logprob" in body)
    for _ in range(2):
        prefill, decode = (
            reply.body["meta_info"] for reply in both.to_both(body, random.randrange(1, 1 << 63))
        )
        for name in ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"):
            same_logprobs(expected.get(name) or None, decode.get(name) or None, f"{name} ({what})")
        for name in ("input_token_logprobs", "input_top_logprobs"):
            same_logprobs(expected.get(name) or None, prefill.get(name) or None, f"{name} ({what})")


def same_logprobs(expected: Any, actual: Any, where: str) -> None:
    """Nested lists of (log-probability, token, text): the same tokens, values within the tolerance."""
    if isinstance(expected, float) and isinstance(actual, float):
        assert actual == pytest.approx(expected, abs=TOLERANCE), where
    elif isinstance(expected, list) and isinstance(actual, list):
        assert len(actual) == len(expected), where
        for one, other in zip(expected, actual, strict=True):
            same_logprobs(one, other, where)
    else:
        assert actual == expected, where


# -- C16: rooms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, -1, (1 << 63), 1 << 64, 1 << 70, "abc", 1.5, None, []])
def test_a_room_that_is_none_is_the_clients_error(both: Both, cluster: Cluster, room: Any) -> None:
    for reply in both.to_both(generate(max_new_tokens=2), room):
        assert 400 <= reply.status < 500, reply
    for server in (*cluster.prefills, *cluster.decodes):
        wait_for(server.ready)


@pytest.mark.parametrize("host", [None, "", 7])
def test_a_bootstrap_host_that_is_none_is_the_clients_error(both: Both, cluster: Cluster, host: Any) -> None:
    body = {**generate(max_new_tokens=2), **bootstrap(both.port, random.randrange(1, 1 << 63))}
    body["bootstrap_host"] = host
    for reply in post_all([(both.prefill + GENERATE, body), (both.decode + GENERATE, body)]):
        assert 400 <= reply.status < 500, reply
    for server in (*cluster.prefills, *cluster.decodes):
        wait_for(server.ready)


@pytest.mark.parametrize("params", ["x", [1], 7])
def test_custom_params_of_any_kind_change_nothing(both: Both, params: Any) -> None:
    expected, actual = both.ask(GENERATE, generate(max_new_tokens=4, custom_params=params))
    assert_same(expected, actual, stream=False)


def test_the_largest_room_works(both: Both) -> None:
    expected = post(both.ordinary + GENERATE, generate(max_new_tokens=4))
    _prefill, decode = both.to_both(generate(max_new_tokens=4), (1 << 63) - 1)
    assert_same(expected, decode, stream=False)


def test_one_room_for_two_requests_at_a_time_serves_the_first_and_refuses_the_second(both: Both) -> None:
    room = random.randrange(1, 1 << 63)
    bodies = [generate(prompt=text(400, 50 + index), max_new_tokens=40) for index in range(2)]
    expected = [post(both.ordinary + GENERATE, body) for body in bodies]
    asked = [
        (url + GENERATE, body | bootstrap(both.port, room))
        for body in bodies
        for url in (both.prefill, both.decode)
    ]
    replies = post_all(asked)
    served = 0
    for index in range(2):
        decode = replies[2 * index + 1]
        if decode.status == 200:
            # Which of the two prefill took is its own choice: pages of the other are never taken for these.
            assert_same(expected[index], decode, stream=False)
            served += 1
        else:
            assert decode.error
    assert served <= 1
    for body, right in zip(bodies, expected, strict=True):  # one after the other it may be used again
        _prefill, decode = both.to_both(body, room)
        if decode.status == 200:
            assert_same(right, decode, stream=False)
        else:
            assert decode.status == 400
