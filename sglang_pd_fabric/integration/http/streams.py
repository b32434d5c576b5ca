"""A stream that fails says so: with a status while that is possible, with an error event later.

SGLang's /generate answers a failed stream with status 200, an event that looks like an empty answer, and the
normal end ``[DONE]``. The middleware here waits with the head of the response for the first event. A failure
in it gives the whole response its status. The body is an error event even then, because some routers have
sent their own head by that time. A failed stream has no normal end.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

DONE = b"data: [DONE]"
_SIGNS = (b'"type":"abort"', b'data: {"error"')  # a quote inside of a text has a backslash before it


def launch_server(original: Callable[..., Any], server_args: Any, *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's function of that name: puts the middleware in.

    Raises:
        HooksMissingError: the HTTP server runs without one of our hooks.
    """
    from sglang.srt.entrypoints.http_server import app

    from sglang_pd_fabric.integration.hooks import require_installed
    from sglang_pd_fabric.integration.plugin import BACKEND

    if server_args.disaggregation_mode != "null" and server_args.disaggregation_transfer_backend == BACKEND:
        require_installed(in_server=True)
        app.add_middleware(StreamErrors)
    return original(server_args, *args, **kwargs)


class StreamErrors:
    """ASGI middleware. Responses that are no event streams pass untouched."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            send = Watched(send)
        await self._app(scope, receive, send)


class Watched:
    """A ``send`` that holds the head of an event stream back, and lets no failure pass as an answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None
        self._stream = False
        self._failed = False
        self._over = False

    async def __call__(self, message: Message) -> None:
        if self._over:
            return
        if message["type"] == "http.response.start" and _is_stream(message):
            self._head, self._stream = message, True
        elif message["type"] == "http.response.body" and self._stream:
            await self._piece(message)
        else:
            await self._send(message)

    async def _piece(self, message: Message) -> None:
        body = bytes(message.get("body", b""))
        event = failure_in(body)
        if event is not None:
            self._failed = True
            if self._head is not None and "index" not in event:
                self._head["status"] = event["error"]["code"]
            body = b"data: " + json.dumps(event).encode() + b"\n\n"
            self._over = "index" not in event  # the others of a batch go on
        elif self._failed and body.startswith(DONE):
            body = b""
        if self._head is not None and (body or not message.get("more_body")):
            await self._send(self._head)
            self._head = None
        if self._head is None:
            more = bool(message.get("more_body")) and not self._over
            await self._send({"type": "http.response.body", "body": body, "more_body": more})


def failure_in(body: bytes) -> dict[str, Any] | None:
    """The error event in place of an event that tells of a failure; None: it tells of none.

    ``code`` is the HTTP status; ``index`` is there when it is one of several answers in the stream.
    """
    if not body.startswith(b"data: ") or not any(sign in body for sign in _SIGNS):
        return None
    try:
        event = json.loads(body.removeprefix(b"data: "))
    except ValueError:
        return None
    if not isinstance(event, dict):
        return None
    error = event.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        return {"error": {**error, "code": code if is_error(code) else 500}}
    end = (event.get("meta_info") or {}).get("finish_reason") or {}
    if end.get("type") != "abort" or not is_error(end.get("status_code")):
        return None
    kind = "invalid_request_error" if end["status_code"] < 500 else "server_error"
    failure: dict[str, Any] = {
        "error": {"message": end.get("message") or "aborted", "type": kind, "code": int(end["status_code"])}
    }
    if "index" in event:
        failure["index"] = event["index"]
    return failure


def is_error(code: Any) -> bool:
    """Whether it is the HTTP status of an error."""
    return isinstance(code, int) and 400 <= code < 600


def _is_stream(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )
