"""Posts requests as a client would and keeps what came back: status, body, events, and how a stream ended."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

SECONDS = 60.0

Body = dict[str, Any]


@dataclass
class Outcome:
    """One answer. ``events`` of a stream; ``ended``: with the normal terminator."""

    status: int = 0
    text: str = ""
    body: Any = None
    events: list[Any] = field(default_factory=list)
    ended: bool = False
    broken: str = ""  # the connection ended in the middle

    @property
    def error(self) -> str:
        """The text of the error, or nothing when it was a good answer."""
        if self.broken:
            return self.broken
        if self.status != httpx.codes.OK:
            return self.text
        errors = [event["error"] for event in self.events if "error" in event]
        if errors:
            return str(errors[0])
        return ""

    @property
    def last(self) -> Any:
        """The whole answer of /generate: the last event of a stream has all of it."""
        return self.events[-1] if self.events else self.body


async def _post(client: httpx.AsyncClient, url: str, body: Body) -> Outcome:
    outcome = Outcome()
    try:
        async with client.stream("POST", url, json=body) as response:
            outcome.status = response.status_code
            async for piece in response.aiter_text():
                outcome.text += piece
    except httpx.TimeoutException:
        raise
    except httpx.TransportError as error:
        outcome.broken = f"{type(error).__name__}: {error}"
    if body.get("stream"):
        lines = [
            line.removeprefix("data: ") for line in outcome.text.splitlines() if line.startswith("data: ")
        ]
        outcome.ended = "[DONE]" in lines
        outcome.events = [json.loads(line) for line in lines if line != "[DONE]"]
    elif not outcome.broken:
        try:
            outcome.body = json.loads(outcome.text)
        except ValueError:
            outcome.body = outcome.text
    return outcome


async def post_together(requests: Sequence[tuple[str, Body]], seconds: float = SECONDS) -> list[Outcome]:
    """All requests at once, (URL with path, body) each, in one event loop."""
    async with httpx.AsyncClient(timeout=seconds, limits=httpx.Limits(max_connections=None)) as client:
        return await asyncio.gather(*(_post(client, url, body) for url, body in requests))


def post_all(requests: Sequence[tuple[str, Body]], seconds: float = SECONDS) -> list[Outcome]:
    """All requests at once. A timeout raises: nothing may hang."""
    return asyncio.run(post_together(requests, seconds))


def post(url: str, body: Body, seconds: float = SECONDS) -> Outcome:
    """One request."""
    return post_all([(url, body)], seconds)[0]


def bootstrap(port: int, room: Any) -> Body:
    """What a router adds to a request."""
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room}


def assert_failed(outcome: Outcome, *words: str) -> None:
    """It ended as an error that says why, stream or not."""
    assert outcome.error, outcome
    assert outcome.status >= 400 or (outcome.events and not outcome.ended), outcome
    assert not words or any(word in outcome.error for word in words), outcome.error
