"""One server: it takes passes as long as it has work, and the policy says what the next pass does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import NamedTuple

import simpy

from sglang_pd_fabric.tools.plan.costs import Batch, Server, pairs
from sglang_pd_fabric.tools.plan.workload import Request


@dataclass
class Job:
    """A request on its way. Times in seconds, negative while they have not come; counts in tokens."""

    request: Request
    prefilled: int = 0
    made: int = 0
    first_s: float = -1.0
    last_s: float = -1.0

    @property
    def tokens(self) -> int:
        """Tokens of KV cache that it takes in the end, and that are kept free for it."""
        return self.request.prompt + self.request.output

    @property
    def context(self) -> int:
        """Tokens that its next token attends to."""
        return self.prefilled + self.made


class Pass(NamedTuple):
    """A pass that a server has taken. Seconds; tokens of prompts, and requests that each got a token."""

    server: str
    begin_s: float
    end_s: float
    prefill: int
    decode: int


class Policy(NamedTuple):
    """What a server does.

    ``size``: tokens of prompts in a pass; ``mixed``: decode rides along, else it stands still.
    """

    prefills: bool
    decodes: bool
    size: int
    mixed: bool = False


Done = Callable[["Engine", Job], None]


@dataclass
class Engine:
    """A server in a simulation.

    ``prefilled`` is called with a job whose prompt is done, where the server does not decode. Jobs of a
    server that only decodes come with their prompt done.
    """

    env: simpy.Environment
    name: str
    server: Server
    policy: Policy
    prefilled: Done
    waiting: deque[Job] = field(default_factory=deque)
    admitted: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    reserved: int = 0
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        self._wake = self.env.event()
        self.env.process(self._serve())

    def submit(self, job: Job) -> None:
        """A request arrives here."""
        self.waiting.append(job)
        if not self._wake.triggered:
            self._wake.succeed()

    def release(self, job: Job) -> None:
        """Its KV cache is free again."""
        self.reserved -= job.tokens
        if self.waiting and not self._wake.triggered:
            self._wake.succeed()

    def _serve(self) -> Generator[simpy.Event, None, None]:
        while True:
            self._admit()
            parts = self._take_prompts()
            decoding = self.running if not parts or self.policy.mixed else []
            if not parts and not decoding:
                self._wake = self.env.event()
                yield self._wake
                continue
            prompts = sum(tokens for _, tokens in parts)
            batch = Batch(
                prefill=prompts,
                pairs=sum(pairs(job.prefilled, tokens) for job, tokens in parts),
                decode=len(decoding),
                context=sum(job.context for job in decoding),
            )
            begin, seconds = self.env.now, self.server.pass_s(batch)
            yield self.env.timeout(seconds)
            self.busy_s += seconds
            self.passes.append(Pass(self.name, begin, self.env.now, prompts, len(decoding)))
            self._after_decode(list(decoding))
            self._after_prompts(parts)

    def _admit(self) -> None:
        """Takes in order who has room: a prompt that does not fit holds up those behind it."""
        while self.waiting and self.reserved + self.waiting[0].tokens <= self.server.kv_tokens:
            job = self.waiting.popleft()
            self.reserved += job.tokens
            if self.policy.prefills:
                self.admitted.append(job)
            else:
                self.running.append(job)

    def _take_prompts(self) -> list[tuple[Job, int]]:
        """The prompts, or parts of them, that the next pass computes."""
        room = self.policy.size - (len(self.running) if self.policy.mixed else 0)
        parts = []
        for job in self.admitted:
            tokens = min(room, job.request.prompt - job.prefilled)
            if tokens <= 0:
                break
            parts.append((job, tokens))
            room -= tokens
        return parts

    def _after_prompts(self, parts: list[tuple[Job, int]]) -> None:
        for job, tokens in parts:
            job.prefilled += tokens
            if job.prefilled < job.request.prompt:
                continue
            self.admitted.remove(job)
            if self.policy.decodes:
                self.running.append(job)
                self._token(job)
            else:
                self.prefilled(self, job)

    def _after_decode(self, decoded: list[Job]) -> None:
        for job in decoded:
            self._token(job)

    def _token(self, job: Job) -> None:
        job.made += 1
        job.last_s = self.env.now
        if job.first_s < 0:
            job.first_s = self.env.now
        if job.made == job.request.output:
            self.running.remove(job)
            self.release(job)
