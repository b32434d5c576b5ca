"""A prefill and a decode rank as SGLang drives them: our managers, sender and receiver over real engines.

No server runs and no bootstrap server is asked: messages go from one rank's links straight to the other's.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from sglang_pd_fabric.messenger.messages import Endpoint, Message

from ..messenger.pair import PAGE_BYTES, PREFILL, Pair, pair, wire

ADDRESS = "prefill:8998"


class KnownRanks:
    """What is known of the prefill behind any bootstrap address."""

    def ask(self, _server: str) -> None:
        pass

    def ranks(self, _server: str) -> list[Endpoint]:
        return [PREFILL]


class Links:
    """The way to the other rank: what is sent has arrived when the call returns."""

    def __init__(self, deliver: Callable[[Message], None]) -> None:
        self._deliver = deliver

    def send(self, _endpoint: Endpoint, message: Message) -> bool:
        self._deliver(wire(message))
        return True


def manager(side: str, both: Pair) -> Any:
    """Our manager with the parts that a request meets, without those that only a server has."""
    from sglang.srt.disaggregation.utils import DisaggregationMode

    from sglang_pd_fabric.integration.conn.manager import FabricKVManager
    from sglang_pd_fabric.integration.events import LaunchedPasses
    from sglang_pd_fabric.integration.trace import Trace
    from sglang_pd_fabric.messenger.queue import DecodeQueue

    made: Any = object.__new__(FabricKVManager)
    made.disaggregation_mode = DisaggregationMode(side)
    made.engine = (both.source if side == "prefill" else both.target).engine
    made.kv_item_lens_sum = sum(PAGE_BYTES)
    made.is_dummy_cp_rank = made.enable_all_cp_ranks_for_transfer = False
    made.enable_deferred_decode_kv_release = True
    made.bootstrap_timeout = made.waiting_timeout = 600.0
    made.failure_lock, made.connection_lock, made.status_lock = (threading.RLock() for _ in range(3))
    made.live_rooms, made._deferred_ack_poisoned_rooms = set(), set()
    made.addr_to_rooms_tracker, made._staging_outstanding = defaultdict(set), defaultdict(int)
    made.entering = None
    made._trace = Trace("", side)
    made.request_status, made.failure_records, made.prompts, made.queued_on_decode = {}, {}, {}, {}
    made.transfer_infos, made.req_to_decode_prefix_len, made._deferred_ack_targets = {}, {}, {}
    made.prefill_response_tracker, made.required_prefill_response_num_table = {}, {}
    made.connection_pool = {}
    if side == "prefill":
        made.prefill, made.links = both.prefill, Links(both.to_decode.append)
        made.planner = SimpleNamespace(chunk_ended=both.prefill.forward_ended)
    else:
        made.decode, made.queue = both.decode, DecodeQueue(PREFILL, lambda *_message: None)
        made.launched = LaunchedPasses(asynchronous=False)
    return made


@dataclass
class Ranks:
    """Both ranks, and how requests enter them."""

    both: Pair
    prefill: Any
    decode: Any

    def sender(self, req: Any) -> Any:
        """Prefill takes the request in, by our hook around SGLang's queue."""
        from sglang_pd_fabric.integration import rooms
        from sglang_pd_fabric.integration.conn.sender import FabricKVSender

        def add(_queue: Any, taken: Any) -> None:
            taken.disagg_kv_sender = FabricKVSender(self.prefill, ADDRESS, taken.bootstrap_room)

        rooms.enter(add, SimpleNamespace(kv_manager=self.prefill), req)
        return req.disagg_kv_sender

    def receiver(self, req: Any) -> Any:
        """Decode takes the request in, likewise, and knows the prefill rank to ask."""
        from sglang_pd_fabric.integration import rooms
        from sglang_pd_fabric.integration.conn.receiver import FabricKVReceiver

        made: list[Any] = []

        def add(_queue: Any, taken: Any) -> None:
            made.append(FabricKVReceiver(self.decode, ADDRESS, taken.bootstrap_room))

        rooms.enter(add, SimpleNamespace(kv_manager=self.decode), req)
        made[0].bootstrap_infos = [{"rank_ip": PREFILL.host, "rank_port": PREFILL.port}]
        made[0].required_dst_info_num = 1
        return made[0]

    def ask(self, receiver: Any, pages: list[int], aux_row: int = 0) -> None:
        """Decode has memory for the request: SGLang hands its pages to the receiver."""
        receiver.send_metadata(np.array(pages, np.int32), aux_row)

    def send(self, sender: Any, pages: list[int], aux_row: int = 0) -> None:
        """The only chunk of the request is computed: SGLang hands its pages to the sender."""
        sender.init(len(pages), aux_row)
        sender.send(np.array(pages, np.int32), [])

    def wait(self, *ends: Any) -> list[int]:
        """SGLang polls until each of them has concluded. Returns how."""
        from sglang.srt.disaggregation.base.conn import KVPoll

        while not all(each.poll() in (KVPoll.Success, KVPoll.Failed) for each in ends):
            self.prefill.prefill.sweep()
            self.both.deliver()
        return [each.poll() for each in ends]


@contextmanager
def ranks(provider: str = "tcp") -> Iterator[Ranks]:
    """Two ranks that have met."""
    from sglang_pd_fabric.integration.conn.renounced import RenouncedRooms

    with pair(provider) as both:
        both.introduce()
        prefill, decode = manager("prefill", both), manager("decode", both)
        decode.links = Links(prefill._on_prefill)
        decode.renounced = RenouncedRooms(KnownRanks(), decode.links)  # type: ignore[arg-type]
        yield Ranks(both, prefill, decode)
