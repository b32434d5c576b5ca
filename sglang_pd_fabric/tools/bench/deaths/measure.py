"""Two prefill servers and one decode server: one of the former is killed, then the latter.

A server is killed while pages of long requests are on their way. All time-outs are SGLang's.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions
from sglang_pd_fabric.tools.demo.processes import Server
from sglang_pd_fabric.tools.demo.prompts import text
from sglang_pd_fabric.tools.demo.servers import HOST

LONG, SHORT = 6000, 64
AT_ONCE = 4
LIMIT_S = 120.0
MEANWHILE_S = 2.0
LOOK_S = 0.01


class UnexpectedError(RuntimeError):
    """A server did not do what has to be measured."""


class Record(NamedTuple):
    """Seconds from the kill.

    Attributes:
        prefill_errors: until decode answered each client of the killed prefill, with an error.
        reason: one of these errors.
        served: requests to the other prefill that were asked and answered in the two seconds from the kill.
        slowest: of these, seconds.
        decode_errors: until prefill answered each request of the killed decode.
        pool: until prefill's KV pool was as full as before these requests.
    """

    provider: str
    prefill_errors: list[float]
    reason: str
    served: int
    slowest: float
    decode_errors: list[float]
    pool: float


class _Ended(NamedTuple):
    at: float
    status: int
    text: str


def run(provider: str, logs: Path, progress: Callable[[str], None]) -> Record:
    """Start the servers, kill two of them, and say how soon the others knew.

    Raises:
        ServerError: a server did not start.
        UnexpectedError: nothing was under way at a kill, or a survivor answered wrongly.
    """
    options = ClusterOptions(model="gqa", provider=provider, page_size=64, prefill=2)
    # Nothing is cached, so that each request has all of its pages to send.
    with Cluster(dataclasses.replace(options, radix_cache=False), logs, progress) as cluster:
        return asyncio.run(_measure(cluster, provider))


async def _measure(cluster: Cluster, provider: str) -> Record:
    decode = cluster.decodes[0]
    async with httpx.AsyncClient(timeout=LIMIT_S, limits=httpx.Limits(max_connections=None)) as client:
        asked = _Asker(client, cluster)
        for prefill in range(2):  # first contacts
            await asked.both(prefill, SHORT)
        others: list[tuple[float, float]] = []
        async with asyncio.TaskGroup() as group:
            steady = group.create_task(_steady(asked, others))
            killed, ended = await _kill_under_way(asked, 0, cluster.prefills[0], decode)
            await asyncio.sleep(killed + MEANWHILE_S - time.monotonic())
            steady.cancel()
        errors = [one for one in ended if one.status != httpx.codes.OK]
        if not errors:
            raise UnexpectedError("no request was under way when prefill was killed")
        served = [end - begin for begin, end in others if killed <= begin]
        if not served:
            raise UnexpectedError("the other prefill's requests were not answered")
        pool = cluster.prefills[1]
        before = await asked.used(pool)
        gone, ended = await _kill_under_way(asked, 1, decode, pool)
        while await asked.used(pool) > before:
            await asyncio.sleep(LOOK_S)
        back = time.monotonic()
        return Record(
            provider,
            sorted(one.at - killed for one in errors),
            errors[-1].text,
            len(served),
            max(served),
            sorted(one.at - gone for one in ended),
            back - gone,
        )


class _Asker:
    """Sends requests to a prefill of our choice and the decode, as a router would."""

    def __init__(self, client: httpx.AsyncClient, cluster: Cluster) -> None:
        self._client = client
        self._cluster = cluster

    @property
    def decode(self) -> Server:
        return self._cluster.decodes[0]

    def prefill(self, number: int) -> Server:
        return self._cluster.prefills[number]

    async def used(self, server: Server) -> int:
        """Tokens in its KV pool that are neither free nor only cached."""
        loads = (await self._client.get(f"{server.url}/v1/loads")).json()["loads"]
        return sum(int(load["num_used_tokens"]) for load in loads)

    def one(self, prefill: int, tokens: int) -> tuple[asyncio.Task[_Ended], asyncio.Task[_Ended]]:
        """Both servers' answers to a new prompt."""
        body = {
            "text": text(tokens, random.randrange(1 << 30)),
            "sampling_params": {"temperature": 0, "max_new_tokens": 4},
            "bootstrap_host": HOST,
            "bootstrap_port": self._cluster.bootstrap_ports[prefill],
            "bootstrap_room": random.randrange(1, 1 << 63),
        }
        servers = (self.prefill(prefill), self.decode)
        first, second = (asyncio.create_task(self._post(server, body)) for server in servers)
        return first, second

    async def both(self, prefill: int, tokens: int) -> _Ended:
        """Decode's answer, which must be good."""
        first, second = self.one(prefill, tokens)
        await first
        answer = await second
        if answer.status != httpx.codes.OK:
            raise UnexpectedError(f"decode answered {answer.status}: {answer.text}")
        return answer

    async def _post(self, server: Server, body: dict[str, Any]) -> _Ended:
        try:
            response = await self._client.post(f"{server.url}/generate", json=body)
        except httpx.TransportError as error:
            return _Ended(time.monotonic(), 0, str(error))
        return _Ended(time.monotonic(), response.status_code, response.text)


async def _steady(asked: _Asker, done: list[tuple[float, float]]) -> None:
    """One short request after the other to the second prefill."""
    while True:
        began = time.monotonic()
        await asked.both(1, SHORT)
        done.append((began, time.monotonic()))


async def _kill_under_way(
    asked: _Asker, prefill: int, victim: Server, survivor: Server
) -> tuple[float, list[_Ended]]:
    """Kills the victim when long requests are half way. When, and how the survivor answered them."""
    pairs = [asked.one(prefill, LONG) for _ in range(AT_ONCE)]
    while await asked.used(asked.prefill(prefill)) < LONG // 2:
        await asyncio.sleep(LOOK_S)
    victim.signal(signal.SIGKILL)
    killed = time.monotonic()
    side = 1 if survivor is asked.decode else 0
    ended = [await pair[side] for pair in pairs]
    for pair in pairs:
        await pair[1 - side]
    victim.process.wait()
    return killed, ended


def table(record: Record) -> str:
    """What a person wants to know of it."""
    errors, ends = record.prefill_errors, record.decode_errors
    return "\n".join(
        [
            f"prefill killed in mid-transfer ({record.provider}): decode answered its {len(errors)} clients "
            f"with an error after {errors[0]:.2f} to {errors[-1]:.2f} s",
            f"  one of them: {record.reason[:300]}",
            f"  in {MEANWHILE_S:.0f} s from then the other prefill's clients had {record.served} answers, "
            f"after at most {record.slowest:.2f} s each",
            f"decode killed in mid-transfer: prefill ended its {len(ends)} requests after {ends[0]:.2f} to "
            f"{ends[-1]:.2f} s, and its KV pool was as before after {record.pool:.2f} s",
        ]
    )
