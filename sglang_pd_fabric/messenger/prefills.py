"""The prefill ranks that a decode rank knows: what each said of itself, and which of them are lost.

One object stands for one process. Who comes back after it was lost, or answers from the same place as another
process, is a new object; the rooms that the old one was to write keep the old one.
"""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_pd_fabric.fabric.engine import Engine, Peer
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.messenger.compatibility import judge
from sglang_pd_fabric.messenger.credits import Credits
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.liveness import HOLD_S, LINGER_OTHERS_S, LINGER_S, AwakeClock
from sglang_pd_fabric.messenger.messages import (
    MAX_REASON,
    Endpoint,
    Hello,
    Ready,
    Refusal,
    RemoteRegion,
    Shared,
    Welcome,
)

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Prefill:
    """One process of a prefill rank.

    Attributes:
        credits: writes that it was granted.
        number: of the first Hello to it.
        incarnation: its own number; None until it has answered.
        layout: its layout record; None until it has welcomed us.
        refusal: why pages cannot be exchanged with it.
        standstill_s: it writes nothing old after it stood still for so long.
        lost: how it was lost; None as long as it is not.
        lost_at: when that was, on the awake clock.
        peers: its NICs, where ours have to know them, by their addresses.
    """

    endpoint: Endpoint
    credits: int
    number: int
    incarnation: int | None = None
    layout: LayoutRecord | None = None
    refusal: str | None = None
    standstill_s: float = 0.0
    lost: Loss | None = None
    lost_at: float = 0.0
    addresses: tuple[bytes, ...] = ()
    peers: tuple[Peer, ...] = ()


@dataclass(frozen=True)
class Ourselves:
    """What each Hello says of this decode rank."""

    incarnation: int
    reply: Endpoint
    layout: LayoutRecord
    kv: tuple[RemoteRegion, ...]
    aux: tuple[RemoteRegion, ...]
    shared: Shared | None


class Prefills:
    """By control endpoint. The caller holds its lock around every call.

    Args:
        engine: counts for this rank.
        ourselves: what we say of us.
        hold_s: seconds for which the pages of one that keeps silent are held back.
    """

    def __init__(self, engine: Engine, ourselves: Ourselves, hold_s: float) -> None:
        self._engine = engine
        self._us = ourselves
        self._hold_s = hold_s
        self._linger_s = LINGER_S.get(engine.profile.name, LINGER_OTHERS_S)
        self._addresses = tuple(nic.address for nic in engine.nics)
        self._numbers = itertools.count(1)
        self._credits = Credits(engine.profile)
        self._known: dict[Endpoint, Prefill] = {}
        self._silent: list[Prefill] = []  # they may come back and use what they were granted
        self.clock = AwakeClock()

    def get(self, endpoint: Endpoint) -> Prefill | None:
        """The process that answers there now, if we said Hello to it and it was not lost since."""
        return self._known.get(endpoint)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def credits_left(self) -> int:
        """Writes that can still be granted."""
        return self._credits.left

    def hello(self, endpoint: Endpoint) -> Hello:
        """The introduction to send to a prefill rank before the first pull; may be said again."""
        number = next(self._numbers)
        known = self._known.get(endpoint)
        if known is None:
            known = self._known[endpoint] = Prefill(endpoint, 0, number)
            for silent in self._silent_at(endpoint):
                known.credits, silent.credits = known.credits or silent.credits, 0
        known.credits = known.credits or self._credits.grant()
        return Hello(
            self._us.incarnation,
            endpoint,
            number,
            self._us.reply,
            self._us.layout,
            self._addresses,
            self._us.kv,
            self._us.aux,
            known.credits,
            self._us.shared,
        )

    def on_welcome(self, welcome: Welcome) -> tuple[Ready | None, Prefill | None]:
        """Learns what a prefill's layout is.

        Returns:
            What to answer, where the provider wants that; and its predecessor, if another process answered
            from the same place before.
        """
        known, predecessor = self._answered(welcome)
        if known is None:
            return None, None
        known.standstill_s = welcome.standstill_s
        verdict = judge(welcome.layout, self._us.layout)
        if verdict.refusal is not None:
            logger.error("Prefill %s welcomed us, but we refuse it: %s", welcome.prefill, verdict.refusal)
            known.refusal = verdict.refusal
            return None, predecessor
        if verdict.waived:
            logger.warning("Prefill %s: %s", welcome.prefill, verdict.waived)
        answer = None
        if self._engine.profile.inserts_both_ways:
            problem = self._admit(known, welcome.addresses)
            answer = Ready(self._us.incarnation, welcome.addresses, problem[:MAX_REASON])
            known.refusal = problem or None
        known.layout = welcome.layout
        return answer, predecessor

    def on_refusal(self, refused: Refusal) -> Prefill | None:
        """Learns that a prefill refuses us. Returns its predecessor, if there is one."""
        known, predecessor = self._answered(refused)
        if known is not None:
            logger.error("Prefill %s refused us: %s", refused.prefill, refused.reason)
            known.refusal = refused.reason
        return predecessor

    def lost(self, endpoint: Endpoint, how: Loss) -> list[Prefill]:
        """The process there is lost. The next request says Hello again. Returns whom that concerns."""
        known = self._known.pop(endpoint, None)
        if known is not None:
            self._silent.append(known)
        concerned = self._silent_at(endpoint)
        for prefill in concerned:
            self._lose(prefill, how)
        return concerned

    def wrote_last(self, prefill: Prefill, since: float) -> bool:
        """Whether nothing of a process can arrive any more, although it did not say so.

        Args:
            since: when it was asked, on the awake clock.
        """
        if prefill.lost is Loss.DEAD:
            return self.clock.seconds >= prefill.lost_at + self._linger_s
        return self._silent_for(prefill, since, self._hold_s)

    def sweep(self, waits: Callable[[Prefill], bool]) -> None:
        """Lets the clock go on, and lets go of the silent and what they were granted.

        Args:
            waits: whether a room waits for that process, which may still turn out to have ended.
        """
        self.clock.tick()
        for prefill in list(self._silent):
            if self._silent_for(prefill, prefill.lost_at, min(self._hold_s, HOLD_S)) and not waits(prefill):
                self._silent.remove(prefill)
                self._give_back(prefill)

    # -- inside --------------------------------------------------------------------------------------

    def _silent_for(self, prefill: Prefill, since: float, seconds: float) -> bool:
        return self.clock.seconds >= since + max(seconds, prefill.standstill_s)

    def _answered(self, answer: Welcome | Refusal) -> tuple[Prefill | None, Prefill | None]:
        """Who gave the answer to a Hello, and who was there before it, if that is another."""
        known = self._known.get(answer.prefill)
        if known is None or answer.number < known.number:
            logger.warning("%s from %s to no Hello of ours; dropped", type(answer).__name__, answer.prefill)
            return None, None
        predecessor = None
        if known.incarnation not in (None, answer.incarnation):
            predecessor = known
            known = Prefill(answer.prefill, predecessor.credits, answer.number)
            predecessor.credits = 0
            self._known[answer.prefill] = known
            self._silent.append(predecessor)
        known.incarnation = answer.incarnation
        for silent in self._silent_at(answer.prefill):
            if silent.incarnation not in (None, answer.incarnation):
                self._lose(silent, Loss.DEAD)  # a place belongs to one process at a time
        return known, predecessor

    def _silent_at(self, endpoint: Endpoint) -> list[Prefill]:
        return [prefill for prefill in self._silent if prefill.endpoint == endpoint]

    def _lose(self, prefill: Prefill, how: Loss) -> None:
        if prefill.lost is None or (prefill.lost is Loss.SILENT and how is Loss.DEAD):
            prefill.lost, prefill.lost_at = how, self.clock.seconds
        for peer in prefill.peers:
            peer.remove()
        prefill.peers = prefill.addresses = ()
        if prefill.lost is Loss.DEAD:
            if prefill in self._silent:
                self._silent.remove(prefill)
            self._give_back(prefill)

    def _give_back(self, prefill: Prefill) -> None:
        self._credits.give_back(prefill.credits)
        prefill.credits = 0

    def _admit(self, prefill: Prefill, addresses: Sequence[bytes]) -> str:
        """Lets our NICs know a prefill's. Why not, or nothing."""
        if prefill.addresses == tuple(addresses):
            return ""
        try:
            prefill.peers = tuple(self._engine.admit(addresses))
        except FabricError as error:
            logger.error("Prefill %s cannot write to us: %s", prefill.endpoint, error)
            return f"decode cannot take prefill's NIC addresses: {error}"
        prefill.addresses = tuple(addresses)
        return ""
