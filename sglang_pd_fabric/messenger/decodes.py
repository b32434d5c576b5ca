"""The decode ranks that a prefill rank knows: who may be written to, how, and who is refused."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sglang_pd_fabric.fabric.address import describe_address
from sglang_pd_fabric.fabric.engine import Engine, Peer, Region
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.messenger.compatibility import judge
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.messages import MAX_REASON, Endpoint, Hello, Message, Ready, Refusal, Welcome
from sglang_pd_fabric.messenger.sharding import PairTables, pair_tables, split_heads_notice

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decode:
    """A decode rank that said Hello.

    Attributes:
        hello: what it said.
        refusal: why it is not served.
        peer: the way to write to it; None while it is refused, does not know our NICs yet, or keeps silent.
        tables: what goes where; None while it is refused.
        way: our NICs and its own, for messages.
        silent: it was reached, and then did not answer any more.
    """

    hello: Hello
    refusal: str | None = None
    peer: Peer | None = None
    tables: PairTables | None = None
    way: str = ""
    silent: bool = False

    @property
    def reply(self) -> Endpoint:
        return self.hello.reply

    @property
    def layout(self) -> LayoutRecord:
        return self.hello.layout


class Decodes:
    """By incarnation. The caller holds its lock around every call.

    Args:
        engine: writes for this rank.
        layout: this rank's layout record.
        kv: indices of the regions of the KV buffers.
        aux: indices of the regions of the metadata buffers.
        same_host: see `PrefillMessenger`.
        incarnation: random number of this process start.
    """

    def __init__(
        self,
        engine: Engine,
        layout: LayoutRecord,
        kv: Sequence[int],
        aux: Sequence[int],
        same_host: str,
        incarnation: int,
    ) -> None:
        self._engine = engine
        self._layout = layout
        self._kv = kv
        self._aux = aux
        self._same_host = same_host
        self._incarnation = incarnation
        self._addresses = tuple(nic.address for nic in engine.nics)
        self._known: dict[int, Decode] = {}
        self._notices: set[str] = set()

    def host(self, incarnation: int) -> str:
        """Where the rank runs; empty, if it is not known any more."""
        known = self._known.get(incarnation)
        return known.reply.host if known else ""

    def mapped(self, incarnation: int) -> bool:
        """Whether its memory is mapped here, so that nothing goes to it by the provider."""
        known = self._known.get(incarnation)
        return known is not None and known.refusal is None and not known.way

    def get(self, incarnation: int) -> Decode | None:
        return self._known.get(incarnation)

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, incarnation: int) -> Decode:
        return self._known[incarnation]

    def serves(self, incarnation: int) -> bool:
        """Whether it can be written to now."""
        known = self._known.get(incarnation)
        return known is not None and known.peer is not None

    def meet(self, hello: Hello) -> Message:
        """Takes a decode rank in, or refuses it. Returns the answer."""
        known = self._known.get(hello.incarnation)
        if known is not None and known.hello.credits != hello.credits:  # others have the old ones by now
            self.keep_silent(hello.incarnation)
            known = self._known[hello.incarnation]
        if known is None or known.refusal is not None or known.silent:
            known = self._introduce(hello)
        self._known[hello.incarnation] = known
        return self._answer(known, hello)

    def keep_silent(self, incarnation: int) -> None:
        """It does not answer: nothing more goes to it until it asks for something."""
        known = self._known[incarnation]
        if known.peer is not None:
            known.peer.remove()
        if known.refusal is None:
            self._known[incarnation] = replace(known, peer=None, silent=True)

    def all_keep_silent(self) -> None:
        """We stood still ourselves: whatever is on its way to anybody ends."""
        for incarnation in self._known:
            self.keep_silent(incarnation)

    def hear(self, incarnation: int) -> Message | None:
        """It has asked for something: if it had kept silent, it is reached anew. Returns what to tell it."""
        known = self._known[incarnation]
        if not known.silent:
            return None
        known = self._known[incarnation] = self._introduce(known.hello)
        return self._answer(known, known.hello)

    def admit(self, ready: Ready) -> Message | None:
        """A decode rank knows our NICs now, or could not take them. Returns what to tell it, if anything."""
        known = self._known.get(ready.incarnation)
        if known is None or ready.addresses != self._addresses:
            logger.warning("Ready from a decode that never said Hello, or not to us; dropped")
            return None
        if known.peer is not None or known.refusal is not None:
            return None
        try:
            if ready.problem:
                raise FabricError(ready.problem)
            known = replace(known, peer=self._reach(known.hello), silent=False)
        except FabricError as error:
            known = _refused(known.hello, error)
        self._known[ready.incarnation] = known
        return self._answer(known, known.hello) if known.refusal else None

    def at(self, reply: Endpoint) -> list[int]:
        """Who said Hello from this control endpoint."""
        return [incarnation for incarnation, known in self._known.items() if known.reply == reply]

    def gone(self) -> list[int]:
        """Decode ranks of this host whose process has ended: their memory may be mapped here."""
        return [
            incarnation
            for incarnation, known in self._known.items()
            if known.hello.shared is not None and known.hello.shared.slots.owner_has_ended()
        ]

    def reconnect(self, incarnation: int, peer: object) -> None:
        """The decode rank takes nothing any more: what is on its way ends, or is waited for.

        Args:
            peer: what it was on its way by; another connection has nothing to do with that.
        """
        known = self._known.get(incarnation)
        if known is None or known.peer is None or known.peer is not peer or known.way == "":
            return
        known.peer.remove()
        try:
            self._known[incarnation] = replace(known, peer=self._reach(known.hello))
        except FabricError as error:
            self._known[incarnation] = _refused(known.hello, error)

    def forget(self, incarnation: int) -> None:
        known = self._known.pop(incarnation)
        if known.peer is not None:
            known.peer.remove()

    def _answer(self, known: Decode, hello: Hello) -> Message:
        if known.refusal is None:
            return Welcome(
                hello.prefill,
                self._incarnation,
                hello.number,
                self._layout,
                self._addresses,
                self._engine.stall,
            )
        logger.error("Refused decode %s: %s", hello.reply, known.refusal)
        return Refusal(hello.prefill, self._incarnation, hello.number, known.refusal[:MAX_REASON])

    def _introduce(self, hello: Hello) -> Decode:
        verdict = judge(self._layout, hello.layout)
        if verdict.refusal is not None:
            return Decode(hello, verdict.refusal)
        if (len(hello.kv), len(hello.aux)) != (len(hello.layout.page_bytes), len(hello.layout.aux_bytes)):
            return Decode(hello, f"decode has {len(hello.kv)} + {len(hello.aux)} regions, not its layout's")
        if verdict.waived:
            logger.warning("Decode %s: %s", hello.reply, verdict.waived)
        try:
            mapped = self._map(hello)
            waits = mapped is None and self._engine.profile.inserts_both_ways
            peer = None if waits else mapped or self._reach(hello)
        except FabricError as error:
            return _refused(hello, error)
        notice = split_heads_notice(self._layout, hello.layout)
        if notice is not None and notice not in self._notices:
            self._notices.add(notice)
            logger.warning(notice)
        return Decode(
            hello,
            peer=peer,
            tables=pair_tables(self._layout, hello.layout, self._kv, self._aux, len(hello.kv)),
            way="" if mapped else f"{_places(self._addresses)} -> {_places(hello.addresses)}",
        )

    def _map(self, hello: Hello) -> Peer | None:
        """Decode's memory, when it is on this host and may be mapped.

        Raises:
            FabricError: it must be mapped and cannot.
        """
        if self._same_host == "provider" or (self._same_host != "map" and hello.shared is None):
            return None
        if hello.shared is None:
            raise FabricError("SGLANG_PD_FABRIC_SAME_HOST=map, but decode shares no memory")
        try:
            peer = self._engine.map_peer(hello.shared.slots, hello.shared.regions)
        except FabricError as error:
            if self._same_host == "map":
                raise
            logger.info("Decode %s goes by the provider: %s", hello.reply, error)
            return None
        logger.info("Decode %s is on this host: its memory is mapped", hello.reply)
        return peer

    def _reach(self, hello: Hello) -> Peer:
        """The way over the provider.

        Raises:
            FabricError: there is none, or decode's NICs take no more writers.
        """
        if hello.credits == 0:
            raise FabricError("the completion queues of its NICs are divided among other prefill ranks")
        regions = [Region(i, r.base, r.nbytes, r.keys) for i, r in enumerate((*hello.kv, *hello.aux))]
        return self._engine.add_peer(hello.addresses, regions, hello.credits)


def _refused(hello: Hello, error: FabricError) -> Decode:
    return Decode(hello, f"prefill cannot write to decode: {error}")


def _places(addresses: Sequence[bytes]) -> str:
    return ", ".join(map(describe_address, addresses))
