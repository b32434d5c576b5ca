"""Asks a prefill and a decode server directly, as a router would, with a bootstrap port of our choice."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx

from sglang_pd_fabric.tools.demo.client import REQUEST_SECONDS, Answer
from sglang_pd_fabric.tools.demo.prompts import Question


class Reply(NamedTuple):
    """One server's answer to a request that both got."""

    status: int
    body: dict[str, Any]

    @property
    def answer(self) -> Answer:
        meta = self.body["meta_info"]
        return Answer(
            text=self.body["text"],
            tokens=tuple(self.body["output_ids"]),
            logprobs=tuple(entry[0] for entry in meta.get("output_token_logprobs") or ()),
            finish=meta["finish_reason"]["type"],
            prompt_tokens=meta["prompt_tokens"],
        )

    @property
    def error(self) -> str:
        return str(self.body.get("error") or self.body)


class Replies(NamedTuple):
    prefill: Reply
    decode: Reply


def ask_both(
    prefill: str,
    decode: str,
    bootstrap_port: int,
    question: Question,
    seconds: float = REQUEST_SECONDS,
    sampling: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
    headers: Mapping[str, str] | None = None,
) -> Replies:
    """Sends the question to both servers at once, in a room of its own, by way of /generate.

    Args:
        sampling: more sampling parameters, for prefill and for decode.
        headers: of both requests.
    """
    body = {
        "text": question.prompt,
        "return_logprob": True,
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": bootstrap_port,
        "bootstrap_room": random.randrange(1, 1 << 63),
    }

    def with_sampling(more: Mapping[str, Any]) -> dict[str, Any]:
        usual = {"temperature": 0, "max_new_tokens": question.answer_tokens}
        return {**body, "sampling_params": {**usual, **more}}

    async def both() -> Replies:
        async with httpx.AsyncClient(timeout=seconds, headers=headers) as client:
            responses = await asyncio.gather(
                *(
                    client.post(f"{url}/generate", json=with_sampling(more))
                    for url, more in zip((prefill, decode), sampling, strict=True)
                )
            )
        return Replies(*(Reply(response.status_code, response.json()) for response in responses))

    return asyncio.run(both())
