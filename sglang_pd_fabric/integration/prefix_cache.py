"""What the prefix cache must not do while pages are on their way.

After a forward pass SGLang inserts the request's pages into its prefix cache. Where another request has
inserted the same tokens meanwhile, it frees this request's pages and goes on with the cached ones. The freed
pages can be overwritten by the very next forward pass, while they still wait to be sent. So in that case the
request keeps its pages to itself. SGLang inserts once more when the request is released, which is when
its transfer has ended; what is a duplicate then is freed then.

The decision rests on the tree alone, which is the same on all ranks, and not on how far this rank's
writes have come: ranks that free pages at different times would schedule different batches.
"""

from typing import Any


def would_free_pages(req: Any, tree_cache: Any) -> bool:
    """Whether inserting the request now would free pages of its own."""
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    if req.skip_radix_cache_insert:
        return False
    key = RadixKey(req.full_untruncated_fill_ids[: req.extend_end], req.extra_key, cache_salt=req.cache_salt)
    cached = tree_cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len
    return bool(cached > req.kv.cache_protected_len)
