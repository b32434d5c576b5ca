"""A decode whose address answers nothing: the transfer fails in time, and both addresses are named."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
from tcp_relay import TcpRelay

from sglang_pd_fabric.fabric.address import describe_address
from sglang_pd_fabric.fabric.shared_memory import new_endpoint_name
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .pair import DST, PREFILL, SRC, Pair, pair, wire, written


def place(host: str, port: int) -> bytes:
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host) + bytes(8)


# A host that nobody can reach from here, and one where nobody listens.
@pytest.mark.parametrize("host", ["10.255.255.1", "127.0.0.1"])
def test_the_reason_names_our_address_and_the_peers(host: str) -> None:
    with pair(stall=1.0) as both:
        hello = both.decode.hello(PREFILL)
        both.prefill.on_hello(wire(msgspec.structs.replace(hello, addresses=(place(host, 9),))))
        both.deliver()
        both.pull(1, [1, 2])
        both.prefill.open(1)
        both.prefill.send(1, np.array([1, 2], np.int32), 0)
        both.prefill.finish(1, 0)
        state, reason = both.wait_received(1)
        assert state is ReceiveState.FAILED
        assert reason is not None
        assert reason.startswith("writing to decode failed: ")
        assert f"({describe_address(both.source.engine.nics[0].address)} -> {host}:9)" in reason
        assert both.wait_sent(1) == (SendState.FAILED, reason)


def test_a_decode_with_another_dev_shm_is_refused_on_both_sides_with_the_remedy() -> None:
    with pair("shm") as both:
        elsewhere = f"fi_shm://{new_endpoint_name()}:0:0\0".encode()
        hello = msgspec.structs.replace(both.decode.hello(PREFILL), addresses=(elsewhere,))
        both.prefill.on_hello(wire(hello))
        both.pull(1, [1, 2])
        state, reason = both.prefill.open(1)
        assert state is SendState.FAILED
        assert reason is not None
        assert "another container" in reason
        assert "--ipc=host" in reason
        assert both.wait_received(1) == (ReceiveState.FAILED, reason)


def test_a_transfer_that_fails_at_once_is_never_taken_for_done() -> None:
    with pair(stall=1.0) as both:
        # Nothing on the loopback network can be sent to such a host: the post itself fails.
        hello = msgspec.structs.replace(both.decode.hello(PREFILL), addresses=(place("10.255.255.1", 9),))
        both.prefill.on_hello(wire(hello))
        for room in range(1, 300):
            both.pull(room, [1, 2])
            both.prefill.open(room)
            both.prefill.send(room, np.array([1, 2], np.int32), 0)
            both.prefill.finish(room, 0)
            assert both.wait_sent(room)[0] is SendState.FAILED
            both.prefill.close(room)
            both.deliver()
            both.decode.close(room)


@contextmanager
def through_relay(stall: float) -> Iterator[tuple[Pair, TcpRelay]]:
    """A pair between whose NICs a relay can keep everything, while messages still arrive."""
    with pair(stall=stall) as both, TcpRelay(both.target.engine.nics[0].address) as relay:
        hello = both.decode.hello(PREFILL)
        both.prefill.on_hello(wire(msgspec.structs.replace(hello, addresses=(relay.address,))))
        both.deliver()
        both.pull(1, DST)
        written(both, 1)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE
        assert both.wait_sent(1)[0] is SendState.DONE
        both.end(1)
        yield both, relay


def test_what_an_aborted_request_has_on_a_wire_that_takes_nothing_ends_all_the_same() -> None:
    """The client has gone before the deadline: nobody polls for an error of the writes any more."""
    with through_relay(stall=8.0) as (both, relay):
        relay.keep()
        both.pull(2, DST)
        posted = both.source.engine.stats().writes_posted
        written(both, 2)
        while both.source.engine.stats().writes_posted == posted:
            pass
        both.decode.abort(2, "aborted")
        both.deliver()
        while both.prefill.poll(2)[0] is not SendState.FAILED:
            both.prefill.sweep()
        both.wait_released(2)


def test_the_end_of_an_old_connection_does_not_cost_the_new_one_its_requests() -> None:
    with through_relay(stall=8.0) as (both, relay):
        relay.keep()
        both.pull(2, DST)
        written(both, 2)
        both.pull(3, [20, 21, 22, 23, 24])
        both.prefill.open(3)
        both.prefill.send(3, SRC[:2], 0)  # between two chunks: only ``sweep`` looks at it
        assert both.wait_sent(2)[0] is SendState.FAILED
        relay.go_on()
        both.pull(4, [10, 11, 12, 13, 14])
        both.prefill.open(4)
        both.prefill.plan(4, SRC, 0, forward=7)
        both.prefill.sweep()
        assert both.prefill.poll(3)[0] is SendState.FAILED
        both.engine_passes()
        both.prefill.finish(4, 5)
        assert both.wait_received(4) == (ReceiveState.COMPLETE, None)
