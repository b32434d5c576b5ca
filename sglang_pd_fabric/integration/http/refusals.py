"""A request that one side refuses (too long, a wrong field) is not waited for on the other.

A router sends each request to both sides. When one answers 4xx, nobody pulls or fills the room, and the
other side would wait for its time-out, and the router with it. So the HTTP server that refuses posts the room
to the prefill's bootstrap server, which passes it on to the prefill's ranks: they end it, and tell decode.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from sglang_pd_fabric.integration.conn.credentials import sign
from sglang_pd_fabric.integration.http.streams import is_error
from sglang_pd_fabric.integration.rooms import IN_USE, NO_HOST
from sglang_pd_fabric.messenger.messages import MAX_REASON, Refused
from sglang_pd_fabric.settings import load_settings, read_secret

logger = logging.getLogger(__name__)

PATH = "/refused_rooms"
REFUSED = "the request was refused: "
NOTICE_S = 5.0
HUNG_UP = "Request is disconnected"  # SGLang's ValueError of a client that is gone: an abort, no refusal

_notices: set[asyncio.Task[None]] = set()


async def generate_request(
    original: Callable[..., AsyncIterator[Any]], manager: Any, obj: Any, request: Any = None
) -> AsyncIterator[Any]:
    """Around ``TokenizerManager.generate_request``: passes refusals on to the other side."""
    from sglang_pd_fabric.integration.plugin import serves_us

    told = getattr(obj, "bootstrap_room", None) is not None and serves_us()
    async with aclosing(original(manager, obj, request)) as answers:  # type: ignore[type-var]
        try:
            async for answer in answers:
                if told and (refusal := _refusal_in(answer)):
                    _tell(obj, refusal, answer.get("index"))
                yield answer
        except Exception as error:
            if told and (refusal := _refusal(error)):
                _tell(obj, refusal, None)
            raise


def refused_is_400(
    original: Callable[..., Any], req: Any, error_message: str, status_code: Any = None
) -> Any:
    """Around ``prepare_abort``: what the other side refused is the client's error here too."""
    _before, refused, reason = error_message.partition(REFUSED)
    if refused:
        return original(req, refused + reason, HTTPStatus.BAD_REQUEST)
    return original(req, error_message, status_code)


def _refusal(error: Exception) -> str:
    """Why the client's request was refused, or nothing when that is not what has happened."""
    from fastapi import HTTPException

    if isinstance(error, HTTPException):
        return str(error.detail) if 400 <= error.status_code < 500 else ""
    gone = str(error).startswith(HUNG_UP)
    return str(error) if isinstance(error, ValueError) and not gone else ""


def _refusal_in(answer: Any) -> str:
    end = (answer.get("meta_info") or {}).get("finish_reason") if isinstance(answer, dict) else None
    if not end or end.get("type") != "abort" or not is_error(end.get("status_code")):
        return ""
    return str(end.get("message")) if end["status_code"] < 500 else ""


def _tell(obj: Any, reason: str, index: int | None) -> None:
    # The room is another request's; the other side said so; or it is not known which side that is.
    if any(known in reason for known in (IN_USE, REFUSED, NO_HOST)):
        return
    rooms = obj.bootstrap_room if isinstance(obj.bootstrap_room, list) else [obj.bootstrap_room]
    if index is not None:
        rooms = rooms[index : index + 1]
    for room in rooms:
        if isinstance(room, int) and 0 < room < 1 << 63:
            task = asyncio.create_task(_post(_bootstrap_address(obj), Refused(room, reason[:MAX_REASON])))
            _notices.add(task)
            task.add_done_callback(_notices.discard)


def _bootstrap_address(obj: Any) -> str:
    from sglang.srt.runtime_context import get_disagg, get_serving
    from sglang.srt.utils.network import NetworkAddress

    if get_disagg().disaggregation_mode == "prefill":
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(get_serving().host, get_serving().host)
        port = get_disagg().disaggregation_bootstrap_port
    else:
        host, port = _first(obj.bootstrap_host), _first(obj.bootstrap_port)
    return str(NetworkAddress(str(host), int(port or get_disagg().disaggregation_bootstrap_port)).to_url())


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


async def _post(url: str, refused: Refused) -> None:
    try:
        timeout, body = aiohttp.ClientTimeout(total=NOTICE_S), msgspec.json.encode(refused)
        headers = sign(read_secret(load_settings()), "POST", PATH, body)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url + PATH, data=body, headers=headers, allow_redirects=False) as response,
        ):
            if response.status != HTTPStatus.OK:
                raise RuntimeError(f"HTTP {response.status}: {(await response.text())[:400]}")
    except Exception as error:
        logger.warning("Could not tell %s that room %d was refused: %s", url, refused.room, error)
