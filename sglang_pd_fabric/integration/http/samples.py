"""``n`` answers to one prompt: a room for each, the same on both sides.

SGLang sends such a request ``n + 1`` times to its scheduler, first without an answer to fill the prefix
cache, and gives all of them the client's room. Both sides send in the same order, so both can count.
"""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

_sent: ContextVar[Counter[int] | None] = ContextVar("_sent", default=None)


async def handle_batch(
    original: Callable[..., AsyncIterator[Any]], manager: Any, obj: Any, *args: Any
) -> AsyncIterator[Any]:
    """Around ``TokenizerManager._handle_batch_request``: begins to count."""
    from sglang_pd_fabric.integration.plugin import serves_us

    several = getattr(obj, "parallel_sample_num", 1) > 1 and obj.bootstrap_room is not None
    _sent.set(Counter() if several and serves_us() else None)
    async with aclosing(original(manager, obj, *args)) as answers:  # type: ignore[type-var]
        async for answer in answers:
            yield answer


async def send_one(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Around ``TokenizerManager._send_one_request``: a room of its own for each."""
    sent = _sent.get()
    room = request.bootstrap_room
    if sent is not None and isinstance(room, int):
        request.bootstrap_room = room_of(room, sent[room])
        sent[room] += 1
    return await original(manager, request)


def room_of(room: int, number: int) -> int:
    """The room of the n-th time that a request is sent; of the first time it is the client's own."""
    if number == 0:
        return room
    digest = hashlib.blake2b(f"{room}:{number}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 1) or 1
