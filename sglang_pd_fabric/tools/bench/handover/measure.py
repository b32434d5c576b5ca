"""Starts a pair of servers for each backend and asks them in turn, in blocks, one request at a time.

All are started before the first question. Whoever is not asked is stopped (SIGSTOP): what an idle server does
would otherwise be in the others' figures (an idle NIXL agent alone keeps a core busy).
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from sglang_pd_fabric.integration.stamps import read
from sglang_pd_fabric.settings import variable
from sglang_pd_fabric.tools.bench.handover.times import ORDINARY, OURS, Record, Request, summarise
from sglang_pd_fabric.tools.demo.client import REQUEST_SECONDS, Answer, ask
from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions, Group, Ordinary
from sglang_pd_fabric.tools.demo.prompts import Question, text
from sglang_pd_fabric.tools.demo.servers import HOST, ServerOptions
from sglang_pd_fabric.tools.tiny.config import CONTEXT_LENGTH

# Servers' backend and variables. NIXL over sockets, as the others: by itself it would choose shared memory.
CONTENDERS: dict[str, tuple[str, dict[str, str]]] = {
    OURS: ("fabric", {}),
    "mooncake_tcp": ("mooncake_tcp", {}),
    "nixl": ("nixl", {"UCX_TLS": "tcp"}),
    "fabric_chunkwise": ("fabric", {variable("layerwise"): "0"}),
    "fabric_stock": ("fabric", {variable("first_token"): "prefill"}),
}
BACKENDS = tuple(CONTENDERS)


class AnswerError(RuntimeError):
    """A server did not answer, or not what the ordinary server answers."""


class Plan(NamedTuple):
    """What is to be measured."""

    backends: Sequence[str]
    lengths: Sequence[int]
    requests: int
    block: int
    page_size: int
    chunk: int
    provider: str


def run(plan: Plan, logs: Path, progress: Callable[[str], None]) -> list[Record]:
    """Measures all of the plan; one record for each backend and length, and for the ordinary server.

    Raises:
        ServerError: a server does not start or ends.
        AnswerError: an answer is missing or wrong.
        StampError: a request's time stamps are not complete.
    """
    stamps = logs / "stamps"
    with ExitStack() as running:
        groups: dict[str, Group] = {}
        for name in (*plan.backends, ORDINARY):
            groups[name] = running.enter_context(_start(name, plan, stamps, logs / name, progress))
            _signal(groups[name], signal.SIGSTOP)
        requests: list[Request] = []
        for tokens in plan.lengths:
            for first in range(0, plan.requests, plan.block):
                numbers = range(first, min(first + plan.block, plan.requests))
                progress(f"{tokens} tokens: {numbers.stop} of {plan.requests}")
                requests += _round(groups, tokens, numbers)
        return summarise(requests, read(stamps))


def _start(name: str, plan: Plan, stamps: Path, logs: Path, progress: Callable[[str], None]) -> Group:
    if name == ORDINARY:
        options = ServerOptions(page_size=plan.page_size, chunked_prefill_size=plan.chunk)
        return Ordinary(options, logs, progress)
    backend, env = CONTENDERS[name]
    return Cluster(
        ClusterOptions(
            backend=backend,
            provider=plan.provider,
            page_size=plan.page_size,
            chunked_prefill_size=plan.chunk,
            env={variable("stamps"): str(stamps), **env},
        ),
        logs,
        progress,
    )


def _round(groups: dict[str, Group], tokens: int, numbers: range) -> list[Request]:
    """A block of requests to each, all with the same prompts; who is first changes from block to block."""
    names = list(groups)
    turn = numbers.start // len(numbers) % len(names)
    requests: list[Request] = []
    tokens_of: dict[int, tuple[int, ...]] = {}
    for name in (*names[turn:], *names[:turn]):
        with _awake(groups[name]):
            for number, (room, answer) in zip(
                (None, *numbers), asyncio.run(_block(groups[name], tokens, numbers)), strict=True
            ):
                if answer.error or answer.prompt_tokens != tokens:
                    raise AnswerError(f"{name}, {tokens} tokens: {answer}")
                if number is None:
                    continue
                if tokens_of.setdefault(number, answer.tokens) != answer.tokens:
                    raise AnswerError(f"{name}, {tokens} tokens: another answer than {names[turn]}'s")
                requests.append(Request(name, tokens, room, answer.seconds))
    return requests


async def _block(group: Group, tokens: int, numbers: range) -> list[tuple[int, Answer]]:
    """Asks one question that warms the servers up, then those of the block. No prompt comes twice."""
    seed = tokens * CONTEXT_LENGTH
    warm_up = text(tokens, seed - 1 - numbers.start)
    prompts = (warm_up, *(text(tokens, seed + number) for number in numbers))
    async with httpx.AsyncClient(timeout=REQUEST_SECONDS) as client:
        return [await _ask(client, group, Question("", prompt, answer_tokens=1)) for prompt in prompts]


async def _ask(client: httpx.AsyncClient, group: Group, question: Question) -> tuple[int, Answer]:
    """Asks as a router would, in a room of our choice. One token is asked for, so its time is the TTFT."""
    room = random.randrange(1, 1 << 63)
    if not isinstance(group, Cluster):
        return room, await ask(client, group.servers[0].url, question)
    more = {
        "bootstrap_host": HOST,
        "bootstrap_port": group.bootstrap_ports[0],
        "bootstrap_room": room,
    }
    urls = (group.prefills[0].url, group.decodes[0].url)
    answers = await asyncio.gather(*(ask(client, url, question, more) for url in urls))
    failed = [answer for answer in answers if answer.error]
    return room, failed[0] if failed else answers[1]


@contextmanager
def _awake(group: Group) -> Iterator[None]:
    _signal(group, signal.SIGCONT)
    try:
        yield
    finally:
        _signal(group, signal.SIGSTOP)


def _signal(group: Group, number: int) -> None:
    for server in group.servers:
        server.signal(number)
