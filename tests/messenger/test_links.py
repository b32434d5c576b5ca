"""The control plane between processes: order, death, silence, restarts, and nothing left behind."""

import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.links import Links
from sglang_pd_fabric.messenger.messages import Endpoint

from .far_end import HANG, HOST, QUICK, far_end, near_end, note
from .linked import wait_for
from .wire_tap import Proxy


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_messages_arrive_in_order_from_any_thread() -> None:
    with near_end() as (links, box), near_end() as (other, _):
        threads = [
            threading.Thread(
                target=lambda who=who: [other.send(links.endpoint, note(who * 1000 + i)) for i in range(1000)]
            )
            for who in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        box.wait(lambda box: len(box.received) == 4000)
        for who in range(4):
            assert [n for n in box.numbers() if n // 1000 == who] == list(
                range(who * 1000, who * 1000 + 1000)
            )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_binds_where_it_is_told(host: str) -> None:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError:
        pytest.skip(f"this machine has no {host}")
    links = Links(host)
    try:
        assert links.endpoint.host == host
        socket.create_connection((host, links.endpoint.port)).close()
        if host == "127.0.0.1":
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.2", links.endpoint.port))
    finally:
        links.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "224.0.0.1", "localhost"])
def test_a_host_that_it_cannot_be_reached_at_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"connect to|IPv4"):
        Links(host)


def test_a_host_of_another_machine_cannot_be_bound_to() -> None:
    with pytest.raises(zmq.ZMQError, match="assign"):
        Links("198.51.100.1")


def test_a_killed_peer_is_dead_once_and_long_before_a_heartbeat_is_missed() -> None:
    with near_end() as (links, box), far_end() as far:
        assert links.send(far.endpoint, note(1))
        assert far.ask("wait_for", 1) == [1]
        far.kill()
        box.wait(lambda box: bool(box.lost))
        ticks = box.ticks
        box.wait(lambda box: box.ticks > ticks + 3)
        assert box.lost == [(far.endpoint, Loss.DEAD)]


def test_a_peer_that_refuses_connections_is_dead() -> None:
    with socket.socket() as bound, near_end() as (links, box):
        bound.bind((HOST, 0))  # and nobody listens
        nobody = Endpoint(HOST, bound.getsockname()[1])
        links.send(nobody, note(1))
        box.wait(lambda box: bool(box.lost))
        assert box.lost == [(nobody, Loss.DEAD)]


def test_a_frozen_peer_is_silent_and_delays_no_other() -> None:
    with near_end(QUICK) as (links, box), far_end() as frozen, far_end() as other:
        assert links.send(frozen.endpoint, note(1))
        assert frozen.ask("wait_for", 1) == [1]
        with frozen.frozen():
            for number in range(2000):
                links.send(frozen.endpoint, note(number, "x" * 1000))
                assert links.send(other.endpoint, note(number))
            assert other.ask("wait_for", 2000) == list(range(2000))
            box.wait(lambda box: bool(box.lost))
            assert box.lost == [(frozen.endpoint, Loss.SILENT)]
            # Still frozen: a new connection is made by its kernel, and nobody answers there either.
            links.send(frozen.endpoint, note(9999))
            box.wait(lambda box: len(box.lost) == 2)
            assert box.lost[1] == (frozen.endpoint, Loss.SILENT)
        assert links.send(frozen.endpoint, note(10000))
        numbers = frozen.ask("wait_for", 2)
        while 10000 not in numbers:
            numbers = frozen.ask("wait_for", len(numbers) + 1)


def test_a_peer_that_was_frozen_for_a_moment_is_kept() -> None:
    with near_end() as (links, box), far_end() as far:
        links.send(far.endpoint, note(1))
        assert far.ask("wait_for", 1) == [1]
        with far.frozen():
            links.send(far.endpoint, note(2))
            ticks = box.ticks
            box.wait(lambda box: box.ticks > ticks + 5)
        assert far.ask("wait_for", 2) == [1, 2]
        assert not box.lost


def test_a_peer_whose_python_is_stuck_is_not_lost() -> None:
    with near_end(QUICK) as (links, box), far_end() as far:
        links.send(far.endpoint, note(1))
        assert far.ask("wait_for", 1) == [1]
        far.ask("hold_gil", 7)  # more than twice as long as a silent peer is waited for
        links.send(far.endpoint, note(2))
        assert far.ask("wait_for", 2) == [1, 2]
        assert not box.lost


def test_a_restart_on_the_same_port_is_a_loss_and_then_a_new_connection() -> None:
    with near_end() as (links, box):
        port = 0
        for life in range(1, 4):
            with far_end(port) as far:
                port = far.endpoint.port
                assert links.send(far.endpoint, note(life))
                assert far.ask("wait_for", 1) == [life]
            box.wait(lambda box, life=life: len(box.lost) == life)
        assert box.lost == [(Endpoint(HOST, port), Loss.DEAD)] * 3


def test_a_peer_that_is_cut_off_is_silent() -> None:
    with near_end(QUICK) as (links, box), near_end() as (other, far_box), Proxy(other.endpoint.port) as proxy:
        peer = Endpoint(HOST, proxy.port)
        links.send(peer, note(1))
        far_box.wait(lambda box: box.numbers() == [1])
        proxy.swallowing = True
        links.send(peer, note(2))
        box.wait(lambda box: bool(box.lost))
        assert box.lost == [(peer, Loss.SILENT)]


def test_a_peer_that_cannot_be_connected_to_is_silent() -> None:
    full = socket.socket()
    full.bind((HOST, 0))
    full.listen(0)
    crowd = [socket.socket() for _ in range(8)]
    try:
        for each in crowd:  # fills the queue of a server that accepts nobody: the kernel drops who comes next
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        with near_end(QUICK) as (links, box):
            peer = Endpoint(HOST, full.getsockname()[1])
            links.send(peer, note(1))
            box.wait(lambda box: bool(box.lost))
            assert box.lost == [(peer, Loss.SILENT)]
    finally:
        for each in (full, *crowd):
            each.close()


def test_a_queue_that_is_full_refuses_and_never_waits() -> None:
    with near_end() as (links, _), far_end() as far:
        links.send(far.endpoint, note(1))
        far.ask("wait_for", 1)
        with far.frozen():
            big = note(2, "x" * 4000)
            sent = 1
            while links.send(far.endpoint, big):
                sent += 1
                assert sent < 100_000, "the queue has no end"
            assert not links.send(far.endpoint, big)
        assert len(far.ask("wait_for", sent)) == sent


def test_a_handler_that_raises_costs_its_message_only(caplog: pytest.LogCaptureFixture) -> None:
    with near_end() as (sender, _):
        seen: list[int] = []
        done = threading.Event()

        def receive(message: object) -> None:
            seen.append(message.room)  # type: ignore[attr-defined]
            if len(seen) < 5:
                raise RuntimeError("not today")
            done.set()

        links = Links(HOST)
        links.start(receive, lambda *_: 1 / 0, lambda: None)
        try:
            for number in range(5):
                sender.send(links.endpoint, note(number))
            assert done.wait(60)
        finally:
            links.close()
        assert seen == [0, 1, 2, 3, 4]
        assert (
            len([r for r in caplog.records if "unexpected error" in r.message]) == 1
        )  # the others are counted


def test_a_process_without_descriptors_loses_nobody_that_it_has() -> None:
    with near_end() as (links, box), near_end() as (other, other_box), far_end() as far:
        assert far.ask("send", links.endpoint, note(1))
        box.wait(lambda box: box.numbers() == [1])
        for _ in range(20):
            assert not far.ask("send_without_files", other.endpoint, note(2)), "there was no descriptor"
        assert far.ask("send_without_files", links.endpoint, note(3))
        box.wait(lambda box: box.numbers() == [1, 3])
        assert far.ask("send", other.endpoint, note(4))
        other_box.wait(lambda box: box.numbers() == [4])
        assert far.ask("lost") == []


def test_peers_that_come_and_go_leave_nothing_behind() -> None:
    start = open_files()
    with near_end() as (links, box):
        before, threads = 0, 0
        for round_ in range(1, 21):
            with ExitStack() as stack:
                for _ in range(50):
                    peer, peer_box = stack.enter_context(near_end())
                    assert links.send(peer.endpoint, note(round_))
                    peer_box.wait(lambda box, number=round_: box.numbers() == [number])
            box.wait(lambda box, count=50 * round_: len(box.lost) == count)
            if round_ == 2:
                wait_for(lambda: open_files() < start + 40)
                before, threads = open_files(), threading.active_count()
        assert all(loss is Loss.DEAD for _, loss in box.lost)
        # libzmq closes what it has on a thread of its own, a moment later.
        wait_for(lambda: open_files() <= before + 8)
        assert threading.active_count() == threads


def test_what_was_queued_at_the_end_still_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_pd_fabric.messenger.links.LINGER_S", HANG)
    with near_end() as (links, box):
        other = Links(HOST)
        assert other.send(links.endpoint, note(7))
        other.close()
        box.wait(lambda box: box.numbers() == [7])
        assert not other.send(links.endpoint, note(8))
