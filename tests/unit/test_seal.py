"""Seals: what was not sealed with our secret, for us, for the first time, is not taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.messages import Endpoint, MalformedMessageError
from sglang_pd_fabric.messenger.seal import MOST_SENDERS, ForeignMessageError, Seal

SECRET, OTHER = b"0123456789abcdef", b"0123456789abcdeg"
HERE, THERE = Endpoint("10.0.0.1", 1000), Endpoint("10.0.0.2", 1000)
FRAMES = [messages.TAG, b"the body of any message"]


def sealed(secret: bytes | None = SECRET, receiver: Endpoint = HERE) -> list[bytes]:
    return Seal(secret, THERE).put_on(FRAMES, receiver)


def kind_of(seal: Seal, frames: list[bytes]) -> str:
    with pytest.raises(ForeignMessageError) as caught:
        seal.take_off(frames)
    return caught.value.kind


def test_without_a_secret_frames_stay_as_they_are() -> None:
    seal = Seal(None, HERE)
    assert seal.put_on(FRAMES, THERE) is FRAMES
    assert seal.take_off(FRAMES) is FRAMES


def test_with_the_same_secret_messages_pass_in_their_order() -> None:
    sender, receiver = Seal(SECRET, THERE), Seal(SECRET, HERE)
    for _ in range(3):
        assert receiver.take_off(sender.put_on(FRAMES, HERE)) == FRAMES


@pytest.mark.parametrize(
    ("frames", "secret", "kind"),
    [
        (FRAMES, SECRET, "unsealed"),
        (sealed(), None, "sealed"),
        (sealed(OTHER), SECRET, "forged"),
        (sealed(receiver=THERE), SECRET, "forged"),
    ],
    ids=["sender without", "receiver without", "another secret", "for another endpoint"],
)
def test_what_is_foreign_is_refused_by_its_kind(frames: list[bytes], secret: bytes | None, kind: str) -> None:
    assert kind_of(Seal(secret, HERE), frames) == kind


def test_a_message_is_taken_once_and_none_that_is_older() -> None:
    sender, receiver = Seal(SECRET, THERE), Seal(SECRET, HERE)
    first, second = (sender.put_on(FRAMES, HERE) for _ in range(2))
    receiver.take_off(second)
    assert kind_of(receiver, second) == "repeated"
    assert kind_of(receiver, first) == "repeated"
    receiver.take_off(sender.put_on(FRAMES, HERE))
    # Another process that has the secret counts for itself.
    receiver.take_off(Seal(SECRET, THERE).put_on(FRAMES, HERE))


@given(st.data())
def test_whatever_is_altered_is_noticed(data: st.DataObject) -> None:
    frames = sealed()
    index = data.draw(st.integers(0, len(frames) - 1))
    frame = frames[index]
    place = data.draw(st.integers(0, len(frame) - 1))
    altered = bytes([frame[place] ^ data.draw(st.integers(1, 255))])
    frames[index] = frame[:place] + altered + frame[place + 1 :]
    with pytest.raises(ForeignMessageError):
        Seal(SECRET, HERE).take_off(frames)


@given(st.lists(st.binary(max_size=64), max_size=6), st.booleans())
def test_random_frames_are_refused_and_never_raise_anything_else(frames: list[bytes], tagged: bool) -> None:
    with pytest.raises((ForeignMessageError, MalformedMessageError)):
        Seal(SECRET, HERE).take_off([b"PDS1", *frames] if tagged else frames)


@given(st.integers(0, 100))
def test_parts_cannot_be_shifted_into_each_other(place: int) -> None:
    tag, first, second, *rest = sealed()
    joined = first + second
    cut = place % (len(joined) + 1)
    moved = [joined] if cut == len(first) else [joined[:cut], joined[cut:]]
    with pytest.raises(ForeignMessageError):
        Seal(SECRET, HERE).take_off([tag, *moved, *rest])


def test_memory_of_senders_has_an_end() -> None:
    receiver = Seal(SECRET, HERE)
    for _ in range(MOST_SENDERS + 10):
        receiver.take_off(Seal(SECRET, THERE).put_on(FRAMES, HERE))
    assert len(receiver._seen) == MOST_SENDERS
