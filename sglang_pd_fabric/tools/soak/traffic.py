"""Asks without pause, so many requests at a time, and notes how each ended."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from sglang_pd_fabric.tools.demo import client as http
from sglang_pd_fabric.tools.demo.client import Answer
from sglang_pd_fabric.tools.demo.cluster import Cluster
from sglang_pd_fabric.tools.demo.prompts import Question
from sglang_pd_fabric.tools.demo.servers import HOST
from sglang_pd_fabric.tools.soak.judge import limit_s, verdict
from sglang_pd_fabric.tools.soak.records import ROUTER, Ask, Ending, Event, Outcome

UNREACHABLE = "cannot be reached"
_WATCH_S = 1.0
# A router hangs up on prefill when decode is gone; before that prefill has so long to notice by itself.
_PREFILL_ALONE_S = 5.0
_PAUSE_S = 1.0  # after a server that is not there
_ABORT_S = 30.0


@dataclass
class _Request:
    """One that is under way."""

    ask: Ask
    began_s: float
    task: asyncio.Task[None] | None = None
    taken_back: bool = False
    waits_for: str = "an answer"
    # When its client knew that it had failed, though prefill may have had yet to end.
    failed_s: float | None = None


@dataclass
class Traffic:
    """Requests against a cluster whose servers may come and go.

    Attributes:
        clock: seconds since the traffic began.
        events: the faults so far; somebody else adds to it.
        ended: is told of each request that has ended.
        name: makes rooms and request ids differ from those of other traffic with the same seed.
    """

    cluster: Cluster
    questions: list[Question]
    right: list[Answer]
    clock: Callable[[], float]
    events: list[Event]
    ended: Callable[[Outcome], None]
    name: str
    under_way: dict[int, _Request] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rooms = random.Random(f"rooms {self.name}")
        # A kept connection to a killed server would break at its successor's first request.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(timeout=None, limits=limits)

    async def run(
        self, asks: Iterator[Ask], at_once: int, goes_on: Callable[[], bool] = lambda: True
    ) -> None:
        """Ask as long as it goes on and there is something to ask; return when all have ended or hung."""
        async with self._client:
            watch = asyncio.create_task(self._watch())
            await asyncio.gather(*(self._worker(asks, goes_on) for _ in range(at_once)))
            watch.cancel()

    async def _worker(self, asks: Iterator[Ask], goes_on: Callable[[], bool]) -> None:
        while goes_on() and (ask := next(asks, None)) is not None:
            request = _Request(ask, self.clock())
            self.under_way[request.ask.number] = request
            request.task = asyncio.create_task(self._serve(request))
            with contextlib.suppress(asyncio.CancelledError):
                await request.task

    async def _watch(self) -> None:
        """Give up what has hung."""
        while True:
            await asyncio.sleep(_WATCH_S)
            now = self.clock()
            for request in list(self.under_way.values()):
                if now > limit_s(request.ask.door, request.began_s, now, self.events) and request.task:
                    self._end(request, Ending.HUNG, f"waited for {request.waits_for}")
                    request.task.cancel()

    async def _serve(self, request: _Request) -> None:
        ask = request.ask
        question = ask.as_question(self.questions)
        answer = await (self._routed if ask.door == ROUTER else self._direct)(request, question)
        if ask.number in self.under_way:
            right = self.right[ask.question]
            ending, reason = verdict(ask, right, answer, taken_back=request.taken_back)
            self._end(request, ending, reason, answer if ending is Ending.SUSPECT else None)
        if UNREACHABLE in answer.error:
            await asyncio.sleep(_PAUSE_S)

    def _end(self, request: _Request, ending: Ending, reason: str, answer: Answer | None = None) -> None:
        if self.under_way.pop(request.ask.number, None) is not None:
            ended_s = self.clock() if request.failed_s is None else request.failed_s
            said, taken_back = answer or Answer(), request.taken_back
            self.ended(Outcome(request.ask, request.began_s, ended_s, ending, reason, said, taken_back))

    # -- ways to ask ---------------------------------------------------------------------------------

    async def _routed(self, request: _Request, question: Question) -> Answer:
        leg = self._leg(self.cluster.url, question, request)
        retreat = asyncio.create_task(self._retreat(request, [leg]))
        try:
            return await _outcome(leg, "router")
        finally:
            _cancel(leg, retreat)

    async def _direct(self, request: _Request, question: Question) -> Answer:
        """Asks prefill and a decode as a router would. What decode says is the answer."""
        room = {
            "bootstrap_host": HOST,
            "bootstrap_port": self.cluster.bootstrap_ports[0],
            "bootstrap_room": self._rooms.randrange(1, 1 << 63),
        }
        prefill = self._leg(self.cluster.prefills[0].url, question, request, room)
        decode = self._leg(self._url(request.ask.door), question, request, room)
        retreat = asyncio.create_task(self._retreat(request, [decode, prefill]))
        try:
            await asyncio.wait({decode, prefill}, return_when=asyncio.FIRST_COMPLETED)
            if not decode.done():
                said = await _outcome(prefill, "prefill")
                if UNREACHABLE in said.error:
                    return said
            answer = await _outcome(decode, "decode")
            if answer.error:
                request.failed_s = self.clock()
            request.waits_for = f"prefill to end; decode had said {answer.error or 'everything'!r}"
            if UNREACHABLE not in answer.error:
                broken = answer.error and not answer.error.startswith("HTTP") and answer.finish != "abort"
                await asyncio.wait({prefill}, timeout=_PREFILL_ALONE_S if broken else None)
            return answer
        finally:
            _cancel(decode, prefill, retreat)

    def _leg(
        self, url: str, question: Question, request: _Request, more: Mapping[str, Any] | None = None
    ) -> asyncio.Task[Answer]:
        body = {**self._rid(request), **(more or {})}
        return asyncio.create_task(http.ask(self._client, url, question, body))

    def _rid(self, request: _Request) -> dict[str, str]:
        # All of one length: SGLang aborts every request whose id begins like the one that it is told.
        return {"rid": f"soak-{self.name}-{request.ask.number:08d}"}

    def _url(self, name: str) -> str:
        return next(server.url for server in self.cluster.servers if server.name == name)

    async def _retreat(self, request: _Request, legs: Sequence[asyncio.Task[Answer]]) -> None:
        ask = request.ask
        if ask.retreat is None:
            return
        await asyncio.sleep(ask.after_s)
        request.taken_back = True
        if ask.retreat == "hang up":
            _cancel(*legs)
            return
        side = self.cluster.prefills[0].name if ask.retreat == "abort on prefill" else ask.door
        with contextlib.suppress(httpx.HTTPError):  # it may be down, or frozen
            await self._client.post(
                f"{self._url(side)}/abort_request", json=self._rid(request), timeout=_ABORT_S
            )


async def _outcome(leg: asyncio.Task[Answer], who: str) -> Answer:
    """What a leg has brought, also when its client hung up."""
    await asyncio.wait({leg})
    if leg.cancelled():
        return Answer(error="hung up")
    answer = leg.result()
    return Answer(error=f"{who} {UNREACHABLE}") if answer.error.startswith("ConnectError") else answer


def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
