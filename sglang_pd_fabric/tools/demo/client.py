"""Asks questions over HTTP, several at a time, and notes what came when."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from sglang_pd_fabric.tools.demo.prompts import Question

REQUEST_SECONDS = 300.0


@dataclass(frozen=True)
class Answer:
    """What came back. `tokens` are known at /generate, log-probabilities where they were asked for.

    With `error` set it is what had come until then. `runners_up` has for each token the one that would have
    come next best, and how far it is behind, in log-probability.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    finish: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0
    ttft: float | None = None
    # Mean time from one token to the next after the first; streaming only, as the one above.
    tpot: float | None = None
    error: str = ""
    runners_up: tuple[tuple[int, float], ...] = ()


@dataclass
class _Reading:
    """An answer while it arrives. Both doors repeat or extend what came before; this keeps the sum."""

    began: float = field(default_factory=time.perf_counter)
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    runners_up: list[tuple[int, float]] = field(default_factory=list)
    finish: str = ""
    # Why the server ended it before its end; a stream has no other place for that.
    aborted: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def generate(self, event: dict[str, Any]) -> None:
        """Take a /generate response or stream event: each holds the whole answer so far."""
        meta = event["meta_info"]
        self.text, self.tokens = event["text"], event["output_ids"]
        self.logprobs = [entry[0] for entry in meta.get("output_token_logprobs") or ()]
        best = meta.get("output_top_logprobs") or ()
        self.runners_up = [(second[1], first[0] - second[0]) for first, second in best]
        finish = meta["finish_reason"] or {}
        self.finish = finish.get("type", "")
        if self.finish == "abort":
            self.aborted = finish.get("message") or "aborted"
        # What was aborted in a queue has no counts.
        self.prompt_tokens, self.cached_tokens = meta.get("prompt_tokens", 0), meta.get("cached_tokens", 0)

    def chat(self, event: dict[str, Any]) -> None:
        """Take a chat completion or stream event: a stream event holds only what is new."""
        for choice in event["choices"]:
            message = choice.get("message") or choice.get("delta") or {}
            self.text += message.get("content") or ""
            content = (choice.get("logprobs") or {}).get("content") or ()
            self.logprobs += [entry["logprob"] for entry in content]
            self.finish = choice["finish_reason"] or self.finish
        usage = event.get("usage") or {}
        self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)

    def answer(self, question: Question) -> Answer:
        end = time.perf_counter()
        ttft = tpot = None
        if question.stream and self.arrivals:
            ttft = self.arrivals[0] - self.began
            if len(self.text) > 1:
                tpot = (self.arrivals[-1] - self.arrivals[0]) / (len(self.text) - 1)
        return Answer(
            self.text,
            tuple(self.tokens),
            tuple(self.logprobs),
            self.finish,
            self.prompt_tokens,
            self.cached_tokens,
            end - self.began,
            ttft,
            tpot,
            self.aborted,
            tuple(self.runners_up),
        )


def request_of(question: Question) -> tuple[str, dict[str, Any]]:
    """Return the path and the JSON body that ask a question."""
    if question.door == "generate":
        body: dict[str, Any] = {
            "text": question.prompt,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": question.answer_tokens,
                "ignore_eos": question.ignore_eos,
            },
            "stream": question.stream,
        }
        if question.logprobs:
            body["return_logprob"] = True
        if question.runners_up:
            body["top_logprobs_num"] = 2
        return "/generate", body
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": question.prompt}],
        "temperature": 0,
        "max_tokens": question.answer_tokens,
        "ignore_eos": question.ignore_eos,
        "stream": question.stream,
    }
    if question.stream:
        body["stream_options"] = {"include_usage": True}
    if question.logprobs:
        body["logprobs"] = True
    return "/v1/chat/completions", body


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


async def ask(
    client: httpx.AsyncClient, url: str, question: Question, more: Mapping[str, Any] | None = None
) -> Answer:
    """Ask one question, with `more` in its JSON body; a failure is an answer with `error` set."""
    path, body = request_of(question)
    body.update(more or {})
    reading = _Reading()
    take = reading.generate if question.door == "generate" else reading.chat
    try:
        async with client.stream("POST", url + path, json=body) as response:
            if response.status_code != httpx.codes.OK:
                content = (await response.aread()).decode(errors="replace")
                return Answer(error=f"HTTP {response.status_code}: {content[:500]}")
            if not question.stream:
                take(json.loads(await response.aread()))
                return reading.answer(question)
            async for event in _events(response):
                if "error" in event:
                    return replace(reading.answer(question), error=str(event["error"])[:500])
                before = len(reading.text)
                take(event)
                if len(reading.text) > before:
                    reading.arrivals.append(time.perf_counter())
    except (httpx.HTTPError, json.JSONDecodeError, KeyError) as error:
        return replace(reading.answer(question), error=f"{type(error).__name__}: {error}")
    return reading.answer(question)


async def _ask_all(url: str, questions: Sequence[Question], at_once: int) -> list[Answer]:
    places = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(timeout=REQUEST_SECONDS, limits=limits) as client:

        async def one(question: Question) -> Answer:
            async with places:
                return await ask(client, url, question)

        return await asyncio.gather(*(one(question) for question in questions))


def ask_all(url: str, questions: Sequence[Question], at_once: int = 8) -> list[Answer]:
    """Ask all questions, `at_once` at a time, and return the answers in the questions' order."""
    return asyncio.run(_ask_all(url, questions, at_once))
