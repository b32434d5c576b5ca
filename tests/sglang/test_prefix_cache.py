"""Pages that wait to be sent stay what they are, whatever SGLang's prefix cache does with their request.

SGLang's own prefix cache, allocator and requests, our engines and messenger; no server.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sglang_pd_fabric.integration import layerwise
from sglang_pd_fabric.messenger.states import ReceiveState

from ..messenger.pair import PAGES, Pair, pair
from .prefill_parts import PAGE_SIZE, PROMPT, Prefill, params

ROOM = 5
DST = [20, 3, 4, 9, 8, 30, 31]


class Planner:
    layerwise = True


class Manager:
    planner = Planner()


class Sender:
    """What the hook looks at to tell our requests from others'."""

    kv_mgr = Manager()


@pytest.fixture
def both() -> Iterator[Pair]:
    with pair() as both:
        both.introduce()
        yield both


def checkpoint() -> Callable[..., Any]:
    from sglang.srt.mem_cache.common import checkpoint_kv_cache

    return checkpoint_kv_cache


def send_while_another_request_caches_the_same_tokens(
    both: Pair, checkpoint_kv_cache: Callable[[Any, Any], Any]
) -> tuple[bool, Prefill, Any]:
    """Returns whether decode got what the forward pass had written."""
    server = Prefill()
    ours, other = server.request(ROOM), server.request(ROOM + 1)
    ours.disagg_kv_sender = Sender()
    pages = server.pages(ours)
    both.pull(ROOM, DST)
    both.prefill.open(ROOM)
    assert both.prefill.plan(ROOM, pages, 0, forward=1)
    written = [buffer[pages].copy() for buffer in both.source.kv]
    checkpoint()(other, server.tree)
    checkpoint_kv_cache(ours, server.tree)
    assert ours.prefix_len == len(PROMPT)
    for buffer in both.source.kv:  # the next forward pass fills every page that is free
        buffer[server.free_pages()] = 0
    both.source.engine.progress.store(2, 0)
    both.prefill.finish(ROOM, 0)
    assert both.wait_received(ROOM)[0] is ReceiveState.COMPLETE
    right = all((there[DST] == here).all() for there, here in zip(both.target.kv, written, strict=True))
    return right, server, ours


def test_pages_on_their_way_are_not_exchanged_for_cached_ones(both: Pair) -> None:
    right, server, ours = send_while_another_request_caches_the_same_tokens(
        both, lambda req, tree: layerwise.checkpoint(checkpoint(), req, tree)
    )
    assert right
    # When the request is released the duplicates are found, and only one copy stays.
    server.tree.checkpoint(ours, up_to=len(PROMPT))
    server.tree.free_kv_row(ours.kv, [(ours.kv.cache_protected_len, len(PROMPT))])
    own_tail = 1  # the other request still holds its last, partial page
    cached = len(PROMPT) // PAGE_SIZE
    assert len(server.free_pages()) == PAGES - 1 - cached - own_tail


def test_without_the_hook_they_are(both: Pair) -> None:
    """This is what the hook is for: when it no longer shows, SGLang has changed and the hook may go."""
    right, _server, _ours = send_while_another_request_caches_the_same_tokens(both, checkpoint())
    assert not right


def test_a_request_that_nobody_else_has_cached_is_shared_at_once() -> None:
    server = Prefill()
    ours = server.request(ROOM)
    ours.disagg_kv_sender = Sender()
    layerwise.checkpoint(checkpoint(), ours, server.tree)
    cached = server.tree.match_prefix(params(PROMPT)).device_prefix_len
    assert cached == len(PROMPT) // PAGE_SIZE * PAGE_SIZE
