"""Traffic of known kinds that goes on until it is told to stop: what ``explain`` is tried on."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import httpx

from sglang_pd_fabric.tools.demo.client import REQUEST_SECONDS, ask
from sglang_pd_fabric.tools.demo.prompts import LONGEST, Question, text


class Askers(NamedTuple):
    """Clients that ask one question after another, each a new one, as a stream.

    Attributes:
        clients: how many there are.
        prompt, answer: tokens.
    """

    clients: int
    prompt: int
    answer: int

    def question(self, number: int) -> Question:
        """The question with this number; its prompt begins like no other's."""
        return Question(
            name=f"{self.prompt}-{number}",
            prompt=text(self.prompt, number),
            stream=True,
            answer_tokens=self.answer,
            logprobs=False,
            ignore_eos=True,
        )


class Kind(NamedTuple):
    """What is asked, and why one would."""

    askers: tuple[Askers, ...]
    purpose: str


KINDS: Mapping[str, Kind] = {
    "steady": Kind((Askers(2, 200, 24),), "2 short streams at a time: nothing waits"),
    "long": Kind(
        (Askers(2, 40, 200), Askers(1, LONGEST, 2)),
        "2 streams, and one long prompt after another, which interrupts them where one server does both",
    ),
    "prompts": Kind((Askers(8, 900, 2),), "8 long prompts at a time: they queue on prefill"),
    "answers": Kind((Askers(48, 40, 100),), "48 long answers at a time: they queue on decode"),
}


class Traffic:
    """Asks from when it is entered to when it is left; what is under way then is answered.

    Args:
        url: of a router, or of a server that does everything.
    """

    def __init__(self, url: str, kind: Kind) -> None:
        self.failure = ""  # the first one; nobody asks any more after it
        self._url = url
        # Prompts are new to the servers' prefix caches, in the next run too.
        self._numbers = itertools.count(random.SystemRandom().randrange(1 << 40))
        self._answered = {askers: threading.Event() for askers in kind.askers}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        """Return when all kinds of askers have had an answer, or one has failed."""
        self._thread.start()
        for answered in self._answered.values():
            answered.wait()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait(self) -> None:
        """Return when a request has failed."""
        self._thread.join()

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=REQUEST_SECONDS, limits=limits) as client:
            everybody = [askers for askers in self._answered for _ in range(askers.clients)]
            await asyncio.gather(*(self._ask(client, askers) for askers in everybody))

    async def _ask(self, client: httpx.AsyncClient, askers: Askers) -> None:
        while not self._stop.is_set():
            answer = await ask(client, self._url, askers.question(next(self._numbers)))
            if answer.error:
                self.failure = self.failure or answer.error
                self._stop.set()
            self._answered[askers].set()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        prog="launch/traffic",
        description="Ask running servers, those of `launch/local --keep` or others, until Ctrl-C.",
        epilog="; ".join(f"{name}: {kind.purpose}" for name, kind in KINDS.items()),
    )
    result.add_argument("kind", choices=KINDS)
    result.add_argument("url", help="address of a router, or of a server that does prefill and decode")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask until Ctrl-C, or until a request fails; return the exit status."""
    options = parser().parse_args(arguments)
    print(f"{options.kind}: {KINDS[options.kind].purpose}; Ctrl-C ends it", flush=True)
    try:
        with Traffic(options.url, KINDS[options.kind]) as traffic:
            traffic.wait()
    except KeyboardInterrupt:
        return 0
    print(f"a request failed: {traffic.failure}", file=sys.stderr)
    return 1
