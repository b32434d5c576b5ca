"""Chunk plans: what a forward pass is about to write is handed to the engine before the pass is launched.

SGLang hands a chunk over when its forward pass has ended. We do it before, so that each layer can travel
while the next is computed; what SGLang sends later is then left out by the messenger, page by page. Requests
that no decode has pulled yet are sent the old way, or with their next chunk.
"""

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from sglang_pd_fabric.fabric.progress import ProgressWord
from sglang_pd_fabric.integration.page_ids import PageReader
from sglang_pd_fabric.integration.progress import Forward, Signals
from sglang_pd_fabric.messenger.prefill import PrefillMessenger

# Where a batch carries its forward pass.
FORWARD = "pd_fabric_forward"
Result = TypeVar("Result")


def final_pages(extend_end: int, prompt: int, decode_prefix: int, page_size: int) -> int:
    """Pages of a room, from its first on, that no later forward pass writes to.

    Args:
        extend_end: tokens of the prompt that are in the pool when this forward pass has ended.
        prompt: tokens of the prompt.
        decode_prefix: tokens that decode has already, a whole number of pages.
        page_size: tokens in a page.
    """
    if extend_end >= prompt:
        return -(-(prompt - decode_prefix) // page_size)
    return max(0, extend_end - decode_prefix) // page_size


class ChunkPlanner:
    """Makes the plans of one scheduler rank, on its thread.

    Args:
        prefill: takes the plans.
        word: the engine's progress word.
        layerwise: whether to plan at all; otherwise it only notes when forward passes end.
        launches: a forward pass is only launched by the calling thread, and ends later.
        note: is told of each forward pass that something was planned for, before it is launched.
    """

    def __init__(
        self,
        prefill: PrefillMessenger,
        word: ProgressWord,
        *,
        layerwise: bool,
        launches: bool,
        note: Callable[[Forward], None] = lambda _forward: None,
    ) -> None:
        self.layerwise = layerwise
        self._launches = launches
        self._prefill = prefill
        self._word = word
        self._note = note
        self._numbers = itertools.count(1)
        self._page_ids = PageReader()

    def run(
        self, scheduler: Any, batch: Any, signals: Signals | None, launch: Callable[[], Result]
    ) -> Result:
        """Plans the batch's chunks, launches its forward pass, and releases at its end what still waits.

        A forward pass that raises fails the requests that it was planned for: their pages are not valid.

        Args:
            scheduler, batch: SGLang's.
            signals: follow the layers of the model; None: nobody does, and nothing is planned.
            launch: SGLang's own ``run_batch``.
        """
        requests = [req for req in batch.reqs if self._is_ours(req)] if batch.forward_mode.is_extend() else []
        planned: list[int] = []
        if self.layerwise and signals is not None and not batch.forward_mode.is_split_prefill():
            forward = Forward(next(self._numbers), self._word)
            planned = [req.bootstrap_room for req in requests if self._plan(scheduler, req, forward.number)]
        setattr(batch, FORWARD, forward if planned else None)
        if planned:
            self._note(forward)
        try:
            result = launch()
        except BaseException:
            for room in planned:
                self._prefill.fail(room, "its forward pass failed on prefill")
            raise
        if not self._launches:
            for req in requests:
                self._prefill.forward_ended(req.bootstrap_room)
        if planned and signals is not None:
            signals.ended(forward, scheduler)
        return result

    def chunk_ended(self, room: int) -> None:
        """SGLang has waited for the forward pass of a chunk, and hands the chunk over now."""
        if self._launches:
            self._prefill.forward_ended(room)

    def _is_ours(self, req: Any) -> bool:
        """Not a warm-up or health-check request, whose sender is SGLang's fake one."""
        from sglang.srt.disaggregation.fake.conn import FakeKVSender

        sender = req.disagg_kv_sender
        ours = getattr(getattr(sender, "kv_mgr", None), "prefill", None) is self._prefill
        return ours and not isinstance(sender, FakeKVSender)

    def _plan(self, scheduler: Any, req: Any, forward: int) -> bool:
        """Plans what the forward pass adds to the request, if a decode waits for it."""
        if req.pending_bootstrap:
            return False
        page_size = scheduler.token_to_kv_pool_allocator.page_size
        prompt, prefix = len(req.origin_input_ids), req.disagg_decode_prefix_len
        first = self._prefill.handed_over(req.bootstrap_room)
        pages = final_pages(req.extend_end, prompt, prefix, page_size)
        if pages <= first:
            return False
        begin, end = prefix + first * page_size, min(prefix + pages * page_size, prompt)
        row = scheduler.req_to_token_pool.req_to_token[req.kv.req_pool_idx, begin:end]
        tokens = scheduler.token_to_kv_pool_allocator.translate_kv_indices_for_transfer(row)
        room = req.bootstrap_room
        self._page_ids.read(
            tokens[::page_size] // page_size, lambda ids: self._prefill.plan(room, ids, first, forward)
        )
        return True
