"""The parts of a prefill scheduler that decide who owns a page: SGLang's own, without a server."""

from array import array
from typing import Any

import pytest

from ..messenger.pair import PAGES

PAGE_SIZE = 16
PROMPT = array("q", range(1000, 1000 + 6 * PAGE_SIZE + 5))


class Prefill:
    """Prefix cache, page allocator and request rows. Pages are as many as a test engine has."""

    def __init__(self) -> None:
        torch = pytest.importorskip("torch")
        pytest.importorskip("sglang", reason="SGLang is not installed")
        from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        self.rows = ReqToTokenPool(8, 1024, "cpu", False)
        self.allocator = PagedTokenToKVPoolAllocator(
            (PAGES - 1) * PAGE_SIZE, PAGE_SIZE, torch.float32, "cpu", None, False
        )
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.allocator,
                page_size=PAGE_SIZE,
                tree_components=(ComponentType.FULL,),
            )
        )

    def request(self, room: int) -> Any:
        """A request with pages for its whole prompt, none of them cached, before its forward pass."""
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.sampling.sampling_params import SamplingParams

        req = Req(str(room), "", PROMPT, SamplingParams(max_new_tokens=1), bootstrap_room=room)
        self.rows.alloc([req])
        req.refresh_fill_ids()
        tokens = self.allocator.alloc(-(-len(PROMPT) // PAGE_SIZE) * PAGE_SIZE)
        self.rows.write((req.kv.req_pool_idx, slice(0, len(PROMPT))), tokens[: len(PROMPT)])
        req.kv.kv_allocated_len = req.kv.kv_committed_len = len(PROMPT)
        match = self.tree.match_prefix(params(PROMPT[:0]))
        req.last_node = match.last_device_node
        req.lock = self.tree.lock(req.last_node)
        req.extend_end = len(PROMPT)
        return req

    def pages(self, req: Any) -> Any:
        return (self.rows.req_to_token[req.kv.req_pool_idx, : len(PROMPT) : PAGE_SIZE] // PAGE_SIZE).numpy()

    def free_pages(self) -> list[int]:
        return self.allocator.get_all_free_pages().tolist()


def params(tokens: "array[int]") -> Any:
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return MatchPrefixParams(key=RadixKey(tokens))
