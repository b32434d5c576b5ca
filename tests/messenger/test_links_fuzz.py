"""Whatever arrives at a control port, the next good message is taken, and nobody's log is filled."""

import logging
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.complaints import EVERY_S
from sglang_pd_fabric.messenger.links import Links
from sglang_pd_fabric.messenger.messages import Endpoint
from sglang_pd_fabric.messenger.seal import Seal

from .far_end import HOST, Mailbox, note

SECRET, OTHER = b"0123456789abcdef", b"another secret!!"
ROUNDS = 2000


@contextmanager
def attacked(secret: bytes | None) -> Iterator[tuple[Links, Mailbox, zmq.Socket[bytes]]]:
    """A control plane, and a socket that can send it anything."""
    links, box, context = Links(HOST, secret), Mailbox(), zmq.Context()
    links.start(box.receive, box.lose, box.tick)
    attacker: zmq.Socket[bytes] = context.socket(zmq.PUSH)
    attacker.connect(f"tcp://{links.endpoint}")
    try:
        yield links, box, attacker
    finally:
        links.close()
        context.destroy(linger=0)


def garbage(source: random.Random) -> list[bytes]:
    """Random, truncated, altered, of another version, with too many frames, or with a seal of nobody's."""
    good = messages.encode(note(1, "x" * source.randrange(100)))
    return source.choice(
        (
            [source.randbytes(source.randrange(200)) for _ in range(source.randrange(1, 9))],
            [good[0], good[1][: source.randrange(len(good[1]))]],
            [good[0], good[1] + source.randbytes(source.randrange(1, 9))],
            [b"PDF0", good[1]],
            [*good, *good],
            [b""] * source.randrange(1, 50),
            [b"PDS1", *good, source.randbytes(16), source.randbytes(32)],
        )
    )


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "sealed"])
def test_garbage_costs_nothing_but_itself(secret: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    source, begin = random.Random(11), time.monotonic()
    with attacked(secret) as (links, box, attacker), caplog.at_level(logging.WARNING):
        seal = Seal(secret, Endpoint(HOST, 1))
        for number in range(ROUNDS):
            attacker.send_multipart(garbage(source))
            if number % 100 == 0:
                attacker.send_multipart(seal.put_on(messages.encode(note(number)), links.endpoint))
        attacker.send_multipart(seal.put_on(messages.encode(note(ROUNDS)), links.endpoint))
        box.wait(lambda box: ROUNDS in box.numbers())
        assert set(range(0, ROUNDS, 100)) < set(box.numbers())
        assert sum(links.dropped.values()) == ROUNDS
    times = 1 + int((time.monotonic() - begin) / EVERY_S)
    assert len(caplog.records) <= times * len(links.dropped), "one line for each kind"


def test_random_bytes_are_taken_for_no_protocol() -> None:
    source = random.Random(12)
    with attacked(None) as (links, box, attacker):
        for _ in range(50):
            with socket.create_connection((HOST, links.endpoint.port)) as raw:
                raw.sendall(source.randbytes(source.randrange(1, 300)))
        attacker.send_multipart(messages.encode(note(1)))
        box.wait(lambda box: box.numbers() == [1])


def test_a_message_that_is_too_large_costs_its_sender_the_connection() -> None:
    with attacked(None) as (links, box, attacker):
        attacker.send_multipart([messages.TAG, bytes(messages.MAX_MESSAGE_BYTES + 1)])
        with zmq.Context() as context, context.socket(zmq.PUSH) as other:
            other.connect(f"tcp://{links.endpoint}")
            other.send_multipart(messages.encode(note(2)))
            box.wait(lambda box: box.numbers() == [2])


@pytest.mark.parametrize(
    ("mine", "theirs", "kind"),
    [(SECRET, None, "unsealed"), (None, SECRET, "sealed"), (SECRET, OTHER, "forged")],
)
def test_who_has_another_secret_is_not_heard_and_both_can_find_out_why(
    mine: bytes | None, theirs: bytes | None, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    here, there, box = Links(HOST, mine), Links(HOST, theirs), Mailbox()
    here.start(box.receive, box.lose, box.tick)
    try:
        for number in range(10):
            there.send(here.endpoint, note(number))
        box.wait(lambda _: here.dropped[kind] == 10)
        assert not box.received
    finally:
        here.close()
        there.close()
    assert ["docs/security.md" in record.getMessage() for record in caplog.records] == [True]


def test_a_recorded_message_is_not_taken_again() -> None:
    with attacked(SECRET) as (links, box, attacker):
        frames = Seal(SECRET, Endpoint(HOST, 1)).put_on(messages.encode(note(1)), links.endpoint)
        for _ in range(5):
            attacker.send_multipart(frames)
        box.wait(lambda _: links.dropped["repeated"] == 4)
        assert box.numbers() == [1]
