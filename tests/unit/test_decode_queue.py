"""Prefill ranks hear of requests that wait on decode, all of them, and of no others."""

import time

import pytest

from sglang_pd_fabric.messenger import messages, queue
from sglang_pd_fabric.messenger.messages import MAX_ROOMS, Endpoint, Message, Queued
from sglang_pd_fabric.messenger.queue import DecodeQueue

OURS, ONE, OTHER = Endpoint("10.0.0.1", 1), Endpoint("10.0.0.2", 2), Endpoint("10.0.0.3", 3)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Endpoint, Message]]:
    monkeypatch.setattr(queue, "FIRST_S", 0.0)
    return []


def heard(sent: list[tuple[Endpoint, Message]]) -> dict[Endpoint, list[int]]:
    rooms: dict[Endpoint, list[int]] = {}
    for endpoint, message in sent:
        assert isinstance(message, Queued)
        assert messages.decode(messages.encode(message)) == message
        assert message.reply == OURS
        rooms.setdefault(endpoint, []).extend(message.rooms)
    return rooms


def test_each_writer_hears_of_its_rooms(sent: list[tuple[Endpoint, Message]]) -> None:
    waiting = DecodeQueue(OURS, lambda endpoint, message: sent.append((endpoint, message)))
    waiting.enter(1, [ONE, OTHER])
    waiting.enter(2, [ONE])
    waiting.tell()
    assert heard(sent) == {ONE: [1, 2], OTHER: [1]}


def test_after_a_standstill_that_outlives_prefills_memory_no_room_waits_any_more(
    sent: list[tuple[Endpoint, Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = DecodeQueue(OURS, lambda endpoint, message: sent.append((endpoint, message)))
    waiting.enter(1, [ONE])
    assert waiting.tell() == []
    now = time.monotonic() + 61
    monkeypatch.setattr(queue.time, "monotonic", lambda: now)
    assert waiting.tell() == [1]


def test_rooms_that_have_left_are_not_told_of(sent: list[tuple[Endpoint, Message]]) -> None:
    waiting = DecodeQueue(OURS, lambda endpoint, message: sent.append((endpoint, message)))
    waiting.enter(1, [ONE])
    assert waiting.waits(1)
    waiting.leave(1)
    waiting.leave(7)
    waiting.tell()
    assert not waiting.waits(1)
    assert not sent


def test_a_long_queue_is_told_in_messages_that_are_taken(sent: list[tuple[Endpoint, Message]]) -> None:
    waiting = DecodeQueue(OURS, lambda endpoint, message: sent.append((endpoint, message)))
    rooms = list(range(1, 2 * MAX_ROOMS + 5))
    for room in rooms:
        waiting.enter(room, [ONE])
    waiting.tell()
    assert len(sent) == 3
    assert heard(sent) == {ONE: rooms}


def test_a_room_is_told_of_again_only_after_a_while(
    sent: list[tuple[Endpoint, Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "EVERY_S", 60.0)
    waiting = DecodeQueue(OURS, lambda endpoint, message: sent.append((endpoint, message)))
    waiting.enter(1, [ONE])
    waiting.tell()
    waiting.enter(2, [ONE])
    waiting.tell()
    assert heard(sent) == {ONE: [1, 2]}


def test_a_room_that_has_just_come_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "FIRST_S", 60.0)
    sent: list[tuple[Endpoint, Message]] = []
    waiting = DecodeQueue(OURS, lambda endpoint, message: sent.append((endpoint, message)))
    waiting.enter(1, [ONE])
    waiting.tell()
    assert not sent
