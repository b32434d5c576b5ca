"""One soak from beginning to end: right answers, servers, warm-up, traffic with faults, and the last look."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx

from sglang_pd_fabric.tools.demo.client import Answer
from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions
from sglang_pd_fabric.tools.demo.processes import Server
from sglang_pd_fabric.tools.demo.prompts import Question
from sglang_pd_fabric.tools.demo.servers import HOST
from sglang_pd_fabric.tools.soak import judge, plan
from sglang_pd_fabric.tools.soak.injector import Injector
from sglang_pd_fabric.tools.soak.logs import stated_reason, tracebacks
from sglang_pd_fabric.tools.soak.questions import LONGEST_ANSWER
from sglang_pd_fabric.tools.soak.records import ROUTER, Ask, Ending, Injection, Outcome, Violation
from sglang_pd_fabric.tools.soak.report import Findings, history
from sglang_pd_fabric.tools.soak.resources import (
    RSS_MB_PER_MINUTE,
    Holdings,
    Memory,
    busy,
    growth,
    holdings,
    leaks,
    rss_mb,
    shm_entries,
)
from sglang_pd_fabric.tools.soak.second_opinion import SecondOpinion
from sglang_pd_fabric.tools.soak.traffic import Traffic
from sglang_pd_fabric.tools.tiny.config import Model

Say = Callable[[str], None]

CHUNK, POOL_TOKENS = 128, 8192
LINE_S = 5.0
# After the last request: disconnects are noticed within seconds, pages of aborted requests are
# released when their writers have confirmed.
IDLE_S = 90.0
_IDLE_LOOK_S = 1.0
_WARM_UP, _LAST = 8, 4  # requests of each door
_ALWAYS = (Ending.WRONG, Ending.EMPTY, Ending.HUNG)


@dataclass(frozen=True)
class SoakOptions:
    """What to do to servers that run; see the command line's help.

    Attributes:
        seconds: how long there is traffic, and longer if a server has yet to return.
        faults: in place of what the seed says; gets the names of prefill and of the decodes.
    """

    seconds: float
    seed: int = 0
    at_once: int = 8
    kill_gap_s: float = plan.KILL_GAP_S
    freeze_gap_s: float = plan.FREEZE_GAP_S
    faults: Callable[[str, Sequence[str]], list[Injection]] | None = None


class Soak:
    """Holds the findings while they come in."""

    def __init__(
        self,
        options: SoakOptions,
        cluster: Cluster,
        questions: list[Question],
        right: list[Answer],
        say: Say,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._questions = questions
        self._right = right
        self._say = say
        self._begin = time.monotonic()
        self._memory: dict[str, list[Memory]] = {}
        self._second_opinion = SecondOpinion(cluster.options, questions)
        self.findings = Findings(options.seed)

    def clock(self) -> float:
        """Seconds since the traffic began."""
        return time.monotonic() - self._begin

    def run(self) -> Findings:
        """Warm up, let everything happen, wait until all is over, look."""
        findings = self.findings
        names = [server.name for server in self._cluster.decodes]
        self._say("warming up")
        warm_up = _rounds(len(self._questions), [*names, ROUTER], _WARM_UP)
        # As many at once as later: servers keep the threads and descriptors that it takes.
        asyncio.run(self._traffic("warm").run(warm_up, self._options.at_once))
        self._settle()
        self._fail_early()
        self._refuse()
        findings.base = self._idle()
        findings.outcomes.clear()
        self._begin = time.monotonic()
        self._say(f"traffic for {self._options.seconds:.0f} s, {self._options.at_once} at a time")
        injector = asyncio.run(self._storm())
        findings.seconds = self.clock()
        findings.skipped = injector.skipped
        self._say("all requests have ended; looking at what is left")
        self._ask_each()
        findings.end = self._idle()
        self._compare(injector)
        self._read_logs()
        return findings

    def _fail_early(self) -> None:
        wrong = [outcome for outcome in self.findings.outcomes if outcome.ending is not Ending.EQUAL]
        if wrong:
            raise RuntimeError(f"an answer was not right before anything happened: {wrong[0]}")

    def _refuse(self) -> None:
        """A refusal by each server: from its first one on prefill has links to its own ranks (3 threads)."""
        cluster = self._cluster
        for number, server in enumerate(self._servers()):
            body = {"text": "x", "sampling_params": {"temperature": -1.0}, "bootstrap_room": 1 + number}
            place = {"bootstrap_host": HOST, "bootstrap_port": cluster.bootstrap_ports[0]}
            answer = httpx.post(f"{server.url}/generate", json=body | place, timeout=60)
            if answer.status_code != httpx.codes.BAD_REQUEST:
                raise RuntimeError(f"{server.name} did not refuse what is wrong: {answer.text}")

    # -- while it runs -------------------------------------------------------------------------------

    def _traffic(self, phase: str) -> Traffic:
        return Traffic(
            self._cluster,
            self._questions,
            self._right,
            self.clock,
            self.findings.events,
            self._ended,
            f"{phase}-{self._options.seed}",
        )

    async def _storm(self) -> Injector:
        options, cluster = self._options, self._cluster
        decodes = [server.name for server in cluster.decodes]
        prefill = cluster.prefills[0].name
        if options.faults is None:
            servers = [prefill, *decodes]
            faults = plan.injections(
                options.seed, options.seconds, servers, options.kill_gap_s, options.freeze_gap_s
            )
        else:
            faults = options.faults(prefill, decodes)
        injector = Injector(cluster, self.clock, self.findings.events, self.violated)
        traffic = self._traffic("storm")
        lines = asyncio.create_task(self._lines(traffic))
        asks = plan.asks(options.seed, len(self._questions), decodes)
        async with asyncio.TaskGroup() as group:
            injecting = group.create_task(injector.run(faults))
            group.create_task(
                traffic.run(
                    asks,
                    options.at_once,
                    lambda: self.clock() < options.seconds or not injecting.done(),
                )
            )
        lines.cancel()
        return injector

    async def _lines(self, traffic: Traffic) -> None:
        while True:
            await asyncio.sleep(LINE_S)
            self._remember_memory()
            ended = judge.counts(self.findings.outcomes)
            endings = ", ".join(f"{ended[ending.value]} {ending.value}" for ending in Ending)
            now = [f"{e.fault} {e.target}" for e in self.findings.events if e.until_s is None]
            self._say(
                f"{self.clock():6.0f} s: {endings}; {len(traffic.under_way)} under way; "
                f"{self.findings.faults('kill')} kills, {self.findings.faults('freeze')} freezes"
                f"{'; now: ' + ', '.join(now) if now else ''}"
            )

    def _remember_memory(self) -> None:
        for server in self._servers():
            samples = self._memory.setdefault(server.name, [])
            if samples and samples[-1].pid != server.pid:
                samples.clear()
            if server.alive():
                samples.append(Memory(server.pid, self.clock(), rss_mb(server)))

    def _ended(self, outcome: Outcome) -> None:
        self.findings.outcomes.append(outcome)
        if outcome.ending is Ending.SUSPECT:
            self._say(f"SUSPECT at {outcome.ended_s:.1f} s: {outcome.ask}: {outcome.reason}")
        self._look_at(outcome)

    def _look_at(self, outcome: Outcome) -> None:
        if outcome.ending in _ALWAYS:
            what = f"{outcome.ask}, after {outcome.ended_s - outcome.began_s:.1f} s: {outcome.reason}"
            self.violated(Violation(outcome.ending.value, outcome.ended_s, what))
        elif judge.unprovoked(outcome, self.findings.events):
            self.violated(
                Violation("error without a fault", outcome.ended_s, f"{outcome.ask}: {outcome.reason}")
            )

    def violated(self, violation: Violation) -> None:
        """Note it and say it at once, with what had happened before."""
        self.findings.violations.append(violation)
        self._say(f"VIOLATION {violation}\n  seed {self._options.seed}, logs in {self._cluster.logs}")
        for line in history(self.findings, violation.at_s):
            self._say(f"  {line}")

    def _settle(self) -> None:
        """Hear transformers about all suspects: it takes the processor, so that no traffic may run."""
        outcomes = self.findings.outcomes
        suspects = [at for at, outcome in enumerate(outcomes) if outcome.ending is Ending.SUSPECT]
        if suspects:
            self._say(f"transformers judges {len(suspects)} answers that are not the reference's")
        # The longest first: the shorter ones are its beginnings, and known then.
        for at in sorted(suspects, key=lambda at: len(outcomes[at].answer.tokens), reverse=True):
            right = self._right[outcomes[at].ask.question]
            outcomes[at], rounding = self._second_opinion.settle(outcomes[at], right)
            if rounding is not None:
                self.findings.roundings.append(rounding)
            self._look_at(outcomes[at])

    # -- the last look -------------------------------------------------------------------------------

    def _servers(self) -> list[Server]:
        return [*self._cluster.prefills, *self._cluster.decodes]

    def _idle(self) -> dict[str, Holdings]:
        """What each server holds once it has nothing to do, or has not come to that in time."""
        found: dict[str, Holdings] = {}
        limit = time.monotonic() + IDLE_S
        for server in self._servers():
            if not server.alive():
                continue
            found[server.name] = holdings(server)
            while busy(found[server.name]) and time.monotonic() < limit:
                time.sleep(_IDLE_LOOK_S)
                found[server.name] = holdings(server)
        return found

    def _ask_each(self) -> None:
        """Every server is healthy, and every decode answers what the reference answers."""
        for server in self._servers():
            if not (server.alive() and server.ready()):
                self.violated(
                    Violation("health", self.clock(), f"{server.name} does not serve\n{server.tail()}")
                )
        names = [server.name for server in self._cluster.decodes]
        before = len(self.findings.outcomes)
        asks = _rounds(len(self._questions), [*names, ROUTER], _LAST)
        asyncio.run(self._traffic("last").run(asks, 1))
        self._settle()
        for outcome in self.findings.outcomes[before:]:
            if outcome.ending is Ending.ERROR:
                self.violated(Violation("error at rest", outcome.ended_s, f"{outcome.ask}: {outcome.reason}"))
        del self.findings.outcomes[before:]

    def _compare(self, injector: Injector) -> None:
        findings = self.findings
        lines = []
        for name, end in findings.end.items():
            lines += leaks(name, findings.base[name], end)
            grown = growth(self._memory.get(name, []))
            if grown is not None:
                findings.growth[name] = round(grown, 2)
                if grown > RSS_MB_PER_MINUTE:
                    lines.append(f"{name}: grows by {grown:.1f} MB a minute")
        left = shm_entries(injector.killed)
        if left:
            lines.append(f"/dev/shm has what killed servers left: {', '.join(left)}")
        for line in lines:
            self.violated(Violation("leak", self.clock(), line))

    def _read_logs(self) -> None:
        for log in sorted(self._cluster.logs.glob("*.log")):
            for traceback in tracebacks(log.read_text(errors="replace")):
                reason = stated_reason(traceback)
                if reason is None:
                    self.violated(Violation("traceback", self.clock(), f"{log}\n{traceback}"))
                else:
                    self.findings.stated[reason] += 1


def _rounds(questions: int, doors: Sequence[str], rounds: int) -> Iterator[Ask]:
    """Every door in turn, with prompts of all classes, streamed and whole."""
    for number in range(rounds * len(doors)):
        place = (number + number // len(doors)) % questions
        yield Ask(number, place, LONGEST_ANSWER, number % 2 == 1, doors[number % len(doors)])


def soak_cluster(model: Model, provider: str, decodes: int) -> ClusterOptions:
    """Servers whose prompts are several chunks, and whose pages are soon another request's."""
    return ClusterOptions(
        model=model,
        provider=provider,
        decode=decodes,
        chunked_prefill_size=CHUNK,
        max_total_tokens=POOL_TOKENS,
    )
