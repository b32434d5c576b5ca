"""Kills, freezes and restarts servers as planned, and sees it when one ends by itself."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence

from sglang_pd_fabric.tools.demo.cluster import START_SECONDS, Cluster
from sglang_pd_fabric.tools.demo.processes import Server, ServerError
from sglang_pd_fabric.tools.soak.records import Event, Injection, Violation

_LOOK_S = 0.25


class Injector:
    """Does to a cluster what a plan says.

    Args:
        clock: seconds since the traffic began.
        events: gets each fault when it begins; its end is filled in later.
        violated: is told of a server that ends by itself, or does not come back.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        events: list[Event],
        violated: Callable[[Violation], None],
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._events = events
        self._violated = violated
        self._busy: set[str] = set()
        # Faults whose server was away or frozen when their time came.
        self.skipped = 0
        # Processes that were killed, with their children.
        self.killed: list[int] = []

    async def run(self, plan: Sequence[Injection]) -> None:
        """Return when all has happened and every server serves again."""
        watch = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as group:
                for each in plan:
                    await asyncio.sleep(each.at_s - self._clock())
                    if each.target in self._busy:
                        self.skipped += 1
                        continue
                    self._busy.add(each.target)
                    group.create_task(self._freeze(each) if each.fault == "freeze" else self._kill(each))
        finally:
            watch.cancel()

    def _server(self, name: str) -> Server:
        return next(server for server in self._cluster.servers if server.name == name)

    async def _freeze(self, each: Injection) -> None:
        server = self._server(each.target)
        event = Event("freeze", each.target, self._clock())
        self._events.append(event)
        server.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(each.seconds)
        finally:
            server.signal(signal.SIGCONT)
        event.until_s = self._clock()
        self._busy.discard(each.target)

    async def _kill(self, each: Injection) -> None:
        event = Event("kill", each.target, self._clock())
        self._events.append(event)
        server = self._server(each.target)
        self.killed += server.family()
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(each.seconds)
        # From this thread, which lives as long as the soak: a child ends with the thread that started it.
        server = self._cluster.restart(server)
        if each.again_s is not None:
            await asyncio.sleep(each.again_s)
            self.killed += server.family()
            server = self._cluster.restart(server)
        await self._return(server, event)

    async def _return(self, server: Server, event: Event) -> None:
        limit = time.monotonic() + START_SECONDS
        try:
            while not await asyncio.to_thread(server.ready):
                if time.monotonic() > limit:
                    raise ServerError(f"{server.name} is not ready {START_SECONDS:.0f} s after its restart")
                await asyncio.sleep(_LOOK_S)
        except ServerError as error:
            self._violated(Violation("no restart", self._clock(), str(error)))
            return  # it stays busy: there is nothing to kill
        event.until_s = self._clock()
        self._busy.discard(server.name)

    async def _watch(self) -> None:
        """A server that is not ours to kill must live."""
        while True:
            for server in self._cluster.servers:
                if server.name not in self._busy and not server.alive():
                    self._busy.add(server.name)
                    status = server.process.returncode
                    what = f"{server.name} ended by itself with status {status}\n{server.tail()}"
                    self._violated(Violation("death", self._clock(), what))
                    self._events.append(Event("kill", server.name, self._clock()))
            await asyncio.sleep(_LOOK_S)
