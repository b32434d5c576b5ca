"""Seconds until a layer's pages are on the other side, and what of a transfer is seen after prefill."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sglang_pd_fabric.tools.plan.costs import Server, chunks
from sglang_pd_fabric.tools.plan.hardware import Nic


@dataclass(frozen=True)
class Link:
    """From a prefill server to a decode server.

    ``one_thread``: one thread posts the pages of all GPUs of the server, as the published engine does; in
    ours each rank posts its own.
    """

    server: Server
    nic: Nic
    page_tokens: int
    one_thread: bool = False

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in one buffer: keys or values of a rank's heads, or a latent page."""
        return self.page_tokens * self._layer_bytes // self._buffers

    def layer_pages(self, tokens: int) -> int:
        """Pages that one rank sends for one layer of so many tokens, in all its buffers."""
        return ceil(tokens / self.page_tokens) * self._buffers

    def layer_s(self, tokens: int) -> float:
        """Seconds of one layer of so many tokens, from its last kernel to its pages in the decode server."""
        known, pages = self.server.constants, self.layer_pages(tokens)
        posted = pages * (self._senders if self.one_thread else 1)
        return known.handoff_s + max(posted * known.page_s, self.nic.stream_s(pages, self.page_bytes))

    def layerwise_s(self, tokens: int, chunk: int) -> float:
        """Seconds that a prompt's transfer is seen, when each layer leaves while the next is computed.

        The last layer's, if a layer takes longer to compute than to send; else also what has queued up.
        """
        layers = self.server.model.layers
        computed = sent = 0.0
        for batch in chunks(tokens, chunk):
            layer, seconds = self.layer_s(int(batch.prefill)), self.server.pass_s(batch)
            step = seconds / layers
            # Layer k is ready at computed + k * step. Either the NIC waits for the last one, or for nothing.
            sent = max(sent + layers * layer, computed + step + layers * layer, computed + seconds + layer)
            computed += seconds
        return sent - computed

    def chunkwise_s(self, tokens: int, chunk: int) -> float:
        """The same, when a chunk's pages leave after its forward pass, all layers at once."""
        layers, known = self.server.model.layers, self.server.constants
        computed = sent = 0.0
        for batch in chunks(tokens, chunk):
            computed += self.server.pass_s(batch)
            sent = max(sent, computed) + layers * (self.layer_s(int(batch.prefill)) - known.handoff_s)
        return sent - computed + known.handoff_s

    @property
    def _layer_bytes(self) -> int:
        return self.server.model.kv_layer_bytes(self.server.kv_bytes, self.server.attention_ranks)

    @property
    def _buffers(self) -> int:
        return 1 if self.server.model.latent else 2

    @property
    def _senders(self) -> int:
        """Ranks that send: all that hold heads of their own; with latent attention one of the copies."""
        return 1 if self.server.model.latent else self.server.attention_ranks
