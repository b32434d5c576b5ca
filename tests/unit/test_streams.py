"""A failed stream has a status while that is possible, an error event later, and no normal end."""

import asyncio
import json
from typing import Any

import pytest

from sglang_pd_fabric.integration.http.streams import Watched, failure_in

HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def answer(text: str, finish: dict[str, Any] | None = None, **more: Any) -> bytes:
    return event(text=text, meta_info={"finish_reason": finish}, **more)


def aborted(code: int | None, message: str = "prefill is gone") -> dict[str, Any]:
    return {"type": "abort", "message": message, "status_code": code}


def through(*pieces: bytes, head: dict[str, Any] = HEAD) -> tuple[int, bytes, int]:
    """What leaves the server: status, body, and how often the end was sent."""
    sent: list[Any] = []

    async def run() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        watched = Watched(send)
        await watched(dict(head))
        for piece in pieces:
            await watched({"type": "http.response.body", "body": piece, "more_body": True})
        await watched({"type": "http.response.body", "body": b"", "more_body": False})

    asyncio.run(run())
    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * (
        len(sent) - 1
    )
    bodies = sent[1:]
    return (
        sent[0]["status"],
        b"".join(each["body"] for each in bodies),
        sum(not each["more_body"] for each in bodies),
    )


def errors_of(body: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line]
    return [json.loads(line) for line in lines if b'"error"' in line]


def test_a_stream_that_goes_well_passes_untouched() -> None:
    pieces = (answer("a"), answer("ab", {"type": "stop", "matched": 1}), DONE)
    assert through(*pieces) == (200, b"".join(pieces), 1)


def test_a_failure_before_the_first_token_has_its_status_and_says_why() -> None:
    status, body, ends = through(answer("", aborted(500)), DONE)
    assert (status, ends) == (500, 1)
    assert errors_of(body) == [{"error": {"message": "prefill is gone", "type": "server_error", "code": 500}}]
    assert b"[DONE]" not in body


@pytest.mark.parametrize("code", [400, 503])
def test_its_status_is_the_failures_own(code: int) -> None:
    assert through(answer("", aborted(code)))[0] == code


def test_a_failure_after_the_first_token_is_an_error_event_and_the_last() -> None:
    status, body, ends = through(answer("a"), answer("a", aborted(503)), answer("more"), DONE)
    assert (status, ends) == (200, 1)
    assert body.startswith(answer("a") + b'data: {"error"')
    assert b"more" not in body
    assert b"[DONE]" not in body


def test_one_failure_in_a_batch_leaves_the_others_and_takes_the_end_away() -> None:
    pieces = (answer("", aborted(500), index=0), answer("b", index=1), answer("bc", index=1), DONE)
    status, body, ends = through(*pieces)
    assert (status, ends) == (200, 1)
    assert errors_of(body)[0]["index"] == 0
    assert pieces[1] in body
    assert pieces[2] in body
    assert b"[DONE]" not in body


def test_an_error_event_of_sglangs_own_gives_its_status_too() -> None:
    status, body, _ends = through(event(error={"message": "too long", "code": 400}), DONE)
    assert status == 400
    assert errors_of(body) == [{"error": {"message": "too long", "code": 400}}]


@pytest.mark.parametrize(
    "piece",
    [
        answer('says "type":"abort" in its text'),
        answer("", aborted(None)),  # the client's own wish
        answer("", aborted(200)),
        event(error="only a word"),
        b'data: {"error" broken\n\n',
        b': a comment with "type":"abort"\n\n',
        b'data: [1, "type":"abort"]\n\n',
    ],
)
def test_what_is_no_failure_is_left_alone(piece: bytes) -> None:
    assert failure_in(piece) is None
    assert through(piece, DONE) == (200, piece + DONE, 1)


def test_other_responses_are_not_looked_at() -> None:
    head = {**HEAD, "headers": [(b"content-type", b"application/json")]}
    assert through(answer("", aborted(500)), head=head) == (200, answer("", aborted(500)), 1)


def test_an_empty_stream_has_a_head() -> None:
    assert through() == (200, b"", 1)
