"""The wire: every message survives its encoding, everything else is refused with a reason."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import LAYOUT

from sglang_pd_fabric.fabric.mapped import Share, SharedRegion
from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.messages import (
    Abort,
    Again,
    Counting,
    Digest,
    Ended,
    Endpoint,
    Failure,
    Hello,
    MalformedMessageError,
    Message,
    Over,
    Pull,
    PullName,
    Queued,
    Quiet,
    Ready,
    Refusal,
    Refused,
    RemoteRegion,
    Renounced,
    Shared,
    Spoiled,
    Welcome,
)

PREFILL = Endpoint("127.0.0.1", 30000)
TOP = (1 << 64) - 1
SHARE = Share("boot/1", 4242, 9, 77, 1 << 30)
MESSAGES: list[Message] = [
    Hello(
        TOP,
        PREFILL,
        TOP,
        Endpoint("::1", 30001),
        LAYOUT,
        (b"\x00\xff",),
        (RemoteRegion(TOP, 1 << 40, (TOP, 0)),),
        (),
        256,
        Shared(SHARE, (SharedRegion(SHARE, 64, 4096),)),
    ),
    Welcome(PREFILL, TOP, 1, LAYOUT, (b"\x00\xff", b""), 10.0),
    Ready(TOP, (b"\x00\xff",), "no"),
    Refusal(PREFILL, 5, 1, "page_size: prefill has 16, decode has 64"),
    Pull(1, (1 << 63) - 1, 8191, 127, b"\x01\x00\x00\x00", 3, 64, 1, 5, "decode"),
    Failure(PREFILL, 5, 7, 1, 1, "gone"),
    Spoiled(PREFILL, 5, 7, 1, 1),
    Again(1, 7, 1, 1, 2, 1),
    Digest(PREFILL, TOP, 7, 8191, 127, (TOP, 0)),
    Abort(1, PREFILL, Endpoint("::1", 30001), 7, 1, 1),
    Quiet(PREFILL, TOP, 7, 1, 1),
    Queued(PREFILL, Endpoint("::1", 30001), (0, TOP)),
    Counting(1, PREFILL, Endpoint("::1", 30001), (PullName(7, 1, 1), PullName(TOP, 8191, 127))),
    Over(PREFILL, TOP, (Ended(7, 1, 1, ""), Ended(8, 2, 1, "lost decode"))),
    Refused(7, "the prompt is too long"),
    Renounced(7),
]


def test_every_kind_of_message_is_here() -> None:
    assert {type(message) for message in MESSAGES} == set(get_args(Message))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_survives_its_encoding(message: Message) -> None:
    assert messages.decode(messages.encode(message)) == message


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_foreign_frames_are_refused_and_never_raise_anything_else(frames: list[bytes]) -> None:
    with pytest.raises(MalformedMessageError):
        messages.decode(frames)


@given(st.sampled_from(MESSAGES), st.data())
def test_truncated_and_altered_messages_are_refused_or_still_typed(
    message: Message, data: st.DataObject
) -> None:
    tag, body = messages.encode(message)
    cut = data.draw(st.integers(0, len(body) - 1))
    byte = data.draw(st.integers(0, 255))
    with pytest.raises(MalformedMessageError):
        messages.decode([tag, body[:cut]])
    try:
        altered = messages.decode([tag, body[:cut] + bytes([byte]) + body[cut + 1 :]])
    except MalformedMessageError:
        return
    assert isinstance(altered, Message)


def test_an_oversized_message_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(MalformedMessageError, match="at most"):
        messages.decode([messages.TAG, bytes(messages.MAX_MESSAGE_BYTES + 1)])


def test_a_negative_room_is_refused() -> None:
    with pytest.raises(MalformedMessageError):
        messages.decode(messages.encode(Failure(PREFILL, 5, -1, 0, 1, "")))


def test_page_ids_that_are_cut_off_are_refused() -> None:
    whole = Pull(1, 2, 3, 4, b"\x01\x00\x00\x00", 0, 0, 1)
    tag, frame = messages.encode(whole)
    with pytest.raises(MalformedMessageError, match="4 bytes each"):
        messages.decode([tag, frame.replace(b"\xc4\x04\x01\x00\x00\x00", b"\xc4\x03\x01\x00\x00")])


def test_a_message_that_is_nested_beyond_measure_is_refused() -> None:
    body = (
        bytes.fromhex("82a474797065a44f766572a178") + b"\x91" * 200_000 + b"\xc0"
    )  # an unknown field of Over
    with pytest.raises(MalformedMessageError):
        messages.decode([messages.TAG, body])
