"""Providers that want the writer's address known before a write (efa, efa-direct), played over tcp."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.messages import Message, Ready, Refusal, Welcome
from sglang_pd_fabric.messenger.prefill import PrefillMessenger
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .other_process import remote_decode
from .pair import LAYOUT, PAGE_BYTES, Pair, buffers, open_engine, pair, wire

SRC, DST = np.array([3, 4, 9], np.int32), [7, 8, 1]


def connected(ports: list[int]) -> int:
    """TCP connections of this host to those ports, as the kernel counts them."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == "01" and int(row[1].rpartition(":")[2], 16) in ports for row in rows)


def send_all(prefill: PrefillMessenger, room: int) -> None:
    prefill.send(room, SRC, 0)
    prefill.finish(room, 5)


@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (4, 2), (2, 3)])
def test_nothing_goes_to_a_decode_in_another_process_before_it_knows_our_nics(ours: int, theirs: int) -> None:
    source = buffers(open_engine("tcp", nics=ours, both_ways=True), 1)
    sent: list[Message] = []
    prefill = PrefillMessenger(
        source.engine, LAYOUT, *source.regions(), lambda _to, message: sent.append(message)
    )
    with remote_decode(theirs) as decode:
        ports = decode.ask("ports")
        prefill.on_hello(decode.message("hello"))
        prefill.open(1)
        assert prefill.on_pull(decode.message("pull", 1, DST)) is SendState.ASKED
        send_all(prefill, 1)
        ready = messages.decode(decode.ask("welcome", messages.encode(sent.pop())))
        assert isinstance(ready, Ready)
        assert (source.engine.stats().writes_posted, connected(ports)) == (0, 0), "not even a warm-up"
        assert prefill.poll(1) == (SendState.ASKED, None)

        assert prefill.on_ready(ready) == [1]
        send_all(prefill, 1)
        while decode.ask("poll", 1)[0] is ReceiveState.COUNTING:
            pass
        assert decode.ask("poll", 1) == (ReceiveState.COMPLETE, None)
        assert connected(ports) > 0
        for buffer in range(len(PAGE_BYTES)):
            assert decode.ask("page", buffer, DST[2]) == source.kv[buffer][SRC[2]].tobytes()
        assert prefill.on_pull(decode.message("pull", 2, DST)) is SendState.READY, "once is enough"
        assert sent == []
        source.engine.close()


def test_other_providers_wait_for_nothing() -> None:
    with pair() as both:
        both.prefill.on_hello(wire(both.decode.hello(messages.Endpoint("prefill", 1))))
        assert both.pull(1, DST) is SendState.READY
        (welcome,) = both.to_decode
        assert isinstance(welcome, Welcome)
        assert welcome.addresses == tuple(nic.address for nic in both.source.engine.nics)
        assert both.decode.on_welcome(welcome) is None


def introduced(both: Pair) -> tuple[Welcome, Ready]:
    """Both messages of the first contact, not delivered to prefill."""
    both.prefill.on_hello(wire(both.decode.hello(messages.Endpoint("prefill", 1))))
    welcome = wire(both.to_decode.pop())
    assert isinstance(welcome, Welcome)
    ready = both.decode.on_welcome(welcome)
    assert ready is not None
    return welcome, ready


def delivers(both: Pair, room: int) -> None:
    assert both.pull(room, DST) is SendState.READY
    both.prefill.open(room)
    send_all(both.prefill, room)
    assert both.wait_received(room) == (ReceiveState.COMPLETE, None)


def test_a_second_hello_and_a_second_ready_change_nothing() -> None:
    with pair(both_ways=True) as both:
        _welcome, ready = introduced(both)
        assert both.prefill.on_ready(ready) == []
        delivers(both, 1)
        _welcome, again = introduced(both)
        assert both.prefill.on_ready(again) == []
        delivers(both, 2)


def test_a_ready_that_means_an_earlier_prefill_is_not_taken() -> None:
    with pair(both_ways=True) as both:
        _welcome, ready = introduced(both)
        both.prefill.on_ready(Ready(ready.incarnation, (b"somebody else",)))
        both.prefill.on_ready(Ready(ready.incarnation + 1, ready.addresses))
        assert both.pull(1, DST) is SendState.ASKED
        assert both.prefill.on_ready(ready) == [1]


def test_a_restarted_prefill_takes_the_place_of_its_predecessor() -> None:
    with pair(both_ways=True) as both, pair(both_ways=True) as later:
        introduced(both)
        addresses = tuple(nic.address for nic in later.source.engine.nics)
        welcome = Welcome(messages.Endpoint("prefill", 1), 99, 1, LAYOUT, addresses, 10.0)
        ready = both.decode.on_welcome(welcome)
        assert ready is not None
        assert (ready.addresses, ready.problem) == (addresses, "")
        _welcome, ready = introduced(both)
        assert ready.problem == ""
        assert both.prefill.on_ready(ready) == []
        delivers(both, 1)


@pytest.mark.parametrize(
    "addresses", [(), (b"",), (b"\xff" * 16,), (b"\xff" * 300,), (b"\0" * 16,) * 9, (b"\x0a\0" + b"\1" * 26,)]
)
def test_addresses_that_are_none_fail_the_request_on_both_sides_and_spoil_nothing(
    addresses: tuple[bytes, ...],
) -> None:
    with pair(both_ways=True) as both:
        good, _ready = introduced(both)
        assert both.pull(1, DST) is SendState.ASKED
        bad = both.decode.on_welcome(msgspec.structs.replace(good, addresses=addresses))
        assert bad is not None
        assert "decode cannot take prefill's NIC addresses" in bad.problem
        state, reason = both.decode.poll(1)
        assert (state, reason) == (ReceiveState.FAILED, bad.problem)
        both.decode.close(1)

        assert both.prefill.on_ready(Ready(bad.incarnation, good.addresses, bad.problem)) == [1]
        refusal = next(message for message in both.to_decode if isinstance(message, Refusal))
        assert bad.problem in refusal.reason

    with pair(both_ways=True) as both:
        good, ready = introduced(both)
        both.decode.on_welcome(msgspec.structs.replace(good, addresses=addresses))
        again = both.decode.on_welcome(good)
        assert again == ready
        assert both.prefill.on_ready(again) == []
        delivers(both, 1)
