"""However SGLang ends a request on prefill, it gets the reason once, and nothing of the request stays.

Our sender and managers over real engines, no server.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sglang_pd_fabric.messenger.liveness import AwakeClock

from .ranks import Ranks, ranks
from .test_first_token_parts import ROOM, request
from .test_hnd_pool import configured

pytest.importorskip("sglang", reason="SGLang is not installed: pip install 'sglang-pd-fabric[sglang]'")
pytestmark = pytest.mark.sglang


@pytest.fixture
def both() -> Iterator[Ranks]:
    with configured(), ranks() as made:
        yield made


def asked(both: Ranks) -> tuple[Any, Any]:
    """A request that both have taken in, whose pages decode has asked for."""
    req = request()
    sender, receiver = both.sender(req), both.receiver(req)
    both.ask(receiver, [20, 21, 22, 7])
    return sender, receiver


def remembered(both: Ranks) -> tuple[Any, ...]:
    held = both.prefill
    return held.request_status, held.failure_records, held.live_rooms, held.prompts


def test_an_abort_between_two_chunks_after_which_sglang_asks_nothing(both: Ranks) -> None:
    """``_process_pending_chunked_abort`` of its scheduler only calls ``abort``."""
    sender, _receiver = asked(both)
    sender.init(4, 0)
    assert ROOM in both.prefill.request_status
    sender.abort()
    assert not any(remembered(both))


def test_an_abort_after_which_sglang_asks_for_the_reason(both: Ranks) -> None:
    from sglang.srt.disaggregation.common.conn import KVTransferError

    sender, _receiver = asked(both)
    sender.abort()
    with pytest.raises(KVTransferError, match="Aborted by AbortReq") as raised:
        sender.failure_exception()
    assert not raised.value.is_from_another_rank
    assert not any(remembered(both))


def test_what_failed_on_decode_and_what_failed_on_another_rank_only(both: Ranks) -> None:
    from sglang.srt.disaggregation.common.conn import KVTransferError

    sender, receiver = asked(both)
    receiver.abort()
    assert both.wait(sender)
    with pytest.raises(KVTransferError, match="aborted by decode"):
        sender.failure_exception()
    assert not any(remembered(both))

    receiver.clear()
    sender, _receiver = asked(both)
    with pytest.raises(KVTransferError, match="failed on another rank") as raised:
        sender.failure_exception()
    assert raised.value.is_from_another_rank
    assert not any(remembered(both))


def test_a_failure_that_comes_while_sglang_ends_the_request(both: Ranks, monkeypatch: Any) -> None:
    """The links' thread knows that the room has failed, and the scheduler's takes the room away meanwhile."""
    sender, _receiver = asked(both)
    messenger = both.prefill.prefill
    messenger.fail(ROOM, "lost decode")
    poll = messenger.poll
    ending = threading.Thread(target=sender.abort)

    def poll_and_be_overtaken(room: int) -> Any:
        found = poll(room)
        ending.start()
        ending.join(0.5)  # it may wait for us, or not
        return found

    monkeypatch.setattr(messenger, "poll", poll_and_be_overtaken)
    both.prefill._adopt_failure(ROOM)
    ending.join()
    assert not any(remembered(both))


def test_a_prefill_that_is_lost_while_sglang_ends_the_waiting_request(both: Ranks, monkeypatch: Any) -> None:
    receiver = both.receiver(request())
    queue, decode = both.decode.queue, both.decode
    queue.enter(ROOM, ())
    waits = queue.waits
    ending = threading.Thread(target=receiver.clear)

    def waits_and_is_overtaken(room: int) -> bool:
        found = bool(waits(room))
        ending.start()
        ending.join(0.5)
        return found

    monkeypatch.setattr(queue, "waits", waits_and_is_overtaken)
    decode._fail_waiting(ROOM, "prefill is gone")
    ending.join()
    assert ROOM not in decode.request_status


def test_patience_with_a_prefill_that_is_not_known_runs_while_somebody_looks(both: Ranks) -> None:
    """SGLang does not look while decode is full or paused: that is not the prefill's silence."""
    receiver = both.receiver(request())
    receiver._looked._last -= 60.0
    assert receiver.looked_for() <= AwakeClock.MOST


def test_what_ends_on_decode_before_its_pull_is_not_waited_for_on_prefill(both: Ranks) -> None:
    """Without an abort: no slot is left, a prefill is lost, nobody answers at the bootstrap address."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    req = request()
    sender, receiver = both.sender(req), both.receiver(req)
    receiver.fail("all completion slots are in use")
    receiver.clear()
    both.decode.renounced.tell()
    assert both.wait(sender, receiver) == [KVPoll.Failed] * 2
    assert "ended on decode before" in both.prefill.why_failed(ROOM)


def test_what_was_sent_to_the_end_is_polled_after_an_abort_on_every_rank_alike(both: Ranks) -> None:
    """How far its writes are is a rank's own affair: the next use of the room must not be judged by that."""
    sender, receiver = asked(both)
    both.send(sender, [1, 2, 3, 4])
    while not both.prefill.prefill._rooms.get(ROOM).quiet:
        pass
    sender.abort()
    assert ROOM in both.prefill.live_rooms
    assert both.wait(sender)
    sender.clear()
    assert not any(remembered(both))
    receiver.abort()


class Pass:
    """A forward pass on a GPU that we have not: the event that is recorded behind it."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.forward_stream = self.scheduler = self

    def synchronize(self) -> None:
        assert self.ended.wait(60)


@pytest.mark.parametrize("aborted", [False, True])
def test_pages_are_asked_for_when_the_pass_that_runs_on_decode_has_ended(both: Ranks, aborted: bool) -> None:
    """It may still write into them for the request that had them before."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    from sglang_pd_fabric.integration.events import LaunchedPasses

    running = Pass()
    both.decode.launched = LaunchedPasses(asynchronous=True, behind=lambda running: running)
    both.decode.launched.of(running)
    sender, receiver = asked(both)
    assert sender.poll() == KVPoll.Bootstrapping
    if aborted:
        receiver.abort()
        receiver.ensure_abort_notified()
    running.ended.set()
    if not aborted:
        while sender.poll() == KVPoll.Bootstrapping:
            pass
        both.send(sender, [1, 2, 3, 4])
    assert both.wait(sender) == [KVPoll.Failed if aborted else KVPoll.Success]
    if aborted:
        assert both.both.source.engine.stats().writes_posted == 0
