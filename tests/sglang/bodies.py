"""Requests as plain JSON bodies, for what `Question` cannot say, and the comparison of whole answers."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import httpx

from sglang_pd_fabric.integration.first_token.decision import ASKED
from sglang_pd_fabric.tools.demo.client import REQUEST_SECONDS

Body = dict[str, Any]
# How a prompt is cut, what is cached, and who else is in the batch move a tiny model's log-probabilities by
# up to 1.9e-4, depending on the CPU (docs/first-token.md has what was measured).
TOLERANCE = 5e-4
# Asks for stock behaviour: the first token is prefill's.
STOCK = {ASKED: "prefill"}


class Case(NamedTuple):
    """One request.

    Attributes:
        stock_too: SGLang's own prefill/decode pair answers like an ordinary server here.
    """

    name: str
    body: Body
    path: str = "/generate"
    stock_too: bool = True


class Got(NamedTuple):
    status: int
    body: Any


def generate(name: str, prompt: str, *, stock_too: bool = True, tokens: int = 12, **more: Any) -> Case:
    """A case for /generate. What SGLang does not count among its sampling parameters goes beside them."""
    beside = {key: more.pop(key) for key in BESIDE if key in more}
    sampling = {"temperature": 0, "max_new_tokens": tokens, **more}
    return Case(name, {"text": prompt, "sampling_params": sampling, **beside}, stock_too=stock_too)


BESIDE = ("return_logprob", "top_logprobs_num", "token_ids_logprob", "logprob_start_len", "stream")


def stock(case: Case) -> Case:
    """The same request, with the first token from prefill."""
    body = dict(case.body)
    if case.path == "/generate":
        body["sampling_params"] = {**body["sampling_params"], "custom_params": STOCK}
    else:
        body["custom_params"] = STOCK
    return case._replace(name=f"{case.name} (stock)", body=body)


def ask(url: str, cases: Sequence[Case], at_once: int = 1) -> list[Got]:
    """Asks all, `at_once` at a time."""

    async def everything() -> list[Got]:
        places = asyncio.Semaphore(at_once)
        async with httpx.AsyncClient(timeout=REQUEST_SECONDS) as client:

            async def one(case: Case) -> Got:
                async with places:
                    response = await client.post(url + case.path, json=case.body)
                    streams = response.headers.get("content-type", "").startswith("text/event-stream")
                    return Got(response.status_code, response.text if streams else response.json())

            return await asyncio.gather(*map(one, cases))

    return asyncio.run(everything())


# Of an answer's ``meta_info``: what must be the same.
META = (
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "input_token_logprobs",
    "output_token_logprobs",
    "output_top_logprobs",
    "output_token_ids_logprobs",
)
# Below this a candidate is one that a bias has ruled out. Several are alike then, and which of them is named
# hangs on how many requests are in the batch, in an ordinary server too.
RULED_OUT = -50.0


def difference(expected: Got, actual: Got, tolerance: float = TOLERANCE) -> str | None:
    """How an answer differs from the ordinary server's, or None."""
    if expected.status != actual.status:
        return f"status {actual.status} instead of {expected.status}: {actual.body}"
    if expected.status != httpx.codes.OK:
        return None
    return _difference("", _essence(expected.body), _essence(actual.body), tolerance)


def _essence(body: Any) -> Any:
    if isinstance(body, list):
        return [_essence(each) for each in body]
    if "choices" in body:
        usage = {key: body["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
        return {"choices": body["choices"], "usage": usage}
    meta = {key: body["meta_info"][key] for key in META if key in body["meta_info"]}
    if "output_top_logprobs" in meta:
        meta["output_top_logprobs"] = [_possible(row) for row in meta["output_top_logprobs"] or ()]
    return {"text": body["text"], "output_ids": body["output_ids"], **meta}


def _possible(candidates: list[list[Any]] | None) -> list[list[Any]] | None:
    """Candidates as (log-probability, token, text), those that are ruled out without a name."""
    return candidates and [[value, *(name if value > RULED_OUT else ())] for value, *name in candidates]


def _difference(place: str, one: Any, two: Any, tolerance: float) -> str | None:
    if isinstance(one, float) and isinstance(two, float):
        near = abs(one - two) <= tolerance or one == two
        return None if near else f"{place}: {two} instead of {one}"
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        if one.keys() != two.keys():
            return f"{place}: {sorted(two)} instead of {sorted(one)}"
        pairs = [(f"{place}.{key}", one[key], two[key]) for key in one]
    elif isinstance(one, list) and isinstance(two, list):
        if len(one) != len(two):
            return f"{place}: {two} instead of {one}"
        pairs = [(f"{place}[{at}]", *both) for at, both in enumerate(zip(one, two, strict=True))]
    else:
        return None if one == two else f"{place}: {two!r} instead of {one!r}"
    return next((found for pair in pairs if (found := _difference(*pair, tolerance))), None)


def differences(
    cases: Sequence[Case], expected: Sequence[Got], actual: Sequence[Got], tolerance: float = TOLERANCE
) -> list[str]:
    """One line for each case whose answer is another."""
    found = [
        (case.name, difference(*both, tolerance)) for case, *both in zip(cases, expected, actual, strict=True)
    ]
    return [f"{name}: {how}" for name, how in found if how]
