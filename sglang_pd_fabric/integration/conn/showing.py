"""What a rank holds and has counted, brought to the page of metrics by its control thread."""

from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.integration import metrics
from sglang_pd_fabric.messenger.links import Links
from sglang_pd_fabric.messenger.states import Held


class Showing:
    """Of one rank; only what has changed since the last call is touched.

    Args:
        engine: whose counts are added, from now on.
        links: whose dropped messages are added.
    """

    def __init__(self, engine: Engine, links: Links) -> None:
        self._engine = engine
        self._links = links
        self._held: tuple[Held, int, int] | None = None
        self._stats = engine.stats()
        self._dropped: dict[str, int] = {}

    def show(self, held: Held, remembered: int) -> None:
        """Keeps the page true, if it is called often.

        Args:
            held: by the messenger.
            remembered: rooms in SGLang's own tables.
        """
        shown = (held, remembered, self._engine.nics_removed.bit_count())
        if shown != self._held:
            metrics.show(*shown)
            self._held = shown
        stats = self._engine.stats()
        metrics.count_engine(self._stats, stats, [nic.domain for nic in self._engine.nics])
        self._stats = stats
        metrics.count_dropped(self._dropped, self._links.dropped)
        self._dropped = dict(self._links.dropped)
