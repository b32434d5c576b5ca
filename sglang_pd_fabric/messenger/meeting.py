"""How a prefill rank meets a decode rank: whether it is served, over which way, and what goes where."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_pd_fabric.fabric.engine import Engine, Peer, Region
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.messenger.compatibility import refusal
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.messages import Endpoint, Hello
from sglang_pd_fabric.messenger.sharding import PairTables, pair_tables, split_heads_notice

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decode:
    """A decode rank that said Hello. ``refusal`` is why it is not served; then it has no peer."""

    reply: Endpoint
    layout: LayoutRecord
    refusal: str | None
    peer: Peer | None = None
    tables: PairTables | None = None


class Meeting:
    """Takes decode ranks in for one prefill rank; see ``PrefillMessenger`` for the arguments."""

    def __init__(
        self,
        engine: Engine,
        layout: LayoutRecord,
        kv: Sequence[Region],
        aux: Sequence[Region],
        same_host: str,
    ) -> None:
        self._engine = engine
        self._layout = layout
        self._kv = [region.index for region in kv]
        self._aux = [region.index for region in aux]
        self._same_host = same_host
        self._notices: set[str] = set()

    def meet(self, hello: Hello) -> Decode:
        """What becomes of a decode rank that has introduced itself."""
        reason = refusal(self._layout, hello.layout)
        if reason is not None:
            return Decode(hello.reply, hello.layout, reason)
        try:
            peer = self._reach(hello)
        except FabricError as error:
            return Decode(hello.reply, hello.layout, f"prefill cannot write to decode: {error}")
        notice = split_heads_notice(self._layout, hello.layout)
        if notice is not None and notice not in self._notices:
            self._notices.add(notice)
            logger.warning(notice)
        tables = pair_tables(self._layout, hello.layout, self._kv, self._aux, len(hello.kv))
        return Decode(hello.reply, hello.layout, None, peer, tables)

    def _reach(self, hello: Hello) -> Peer:
        """The way to write to decode: its mapped memory, or the provider.

        Raises:
            FabricError: there is none.
        """
        if self._same_host != "provider" and hello.shared is not None:
            try:
                peer = self._engine.map_peer(hello.shared.slots, hello.shared.regions)
                logger.info("Decode %s is on this host: its memory is mapped", hello.reply)
                return peer
            except FabricError as error:
                if self._same_host == "map":
                    raise
                logger.info("Decode %s goes by the provider: %s", hello.reply, error)
        elif self._same_host == "map":
            raise FabricError("SGLANG_PD_FABRIC_SAME_HOST=map, but decode shares no memory")
        regions = [Region(i, r.base, r.nbytes, r.keys) for i, r in enumerate((*hello.kv, *hello.aux))]
        return self._engine.add_peer(hello.addresses, regions)
