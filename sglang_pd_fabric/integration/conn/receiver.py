"""Decode's handle on one request."""

import logging
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from sglang.srt.disaggregation.base.conn import KVPoll, KVTransferDestination
from sglang.srt.disaggregation.common.conn import CommonKVReceiver, KVTransferError

from sglang_pd_fabric.integration.conn.endpoints import endpoint_of
from sglang_pd_fabric.integration.conn.lookups import RankKey
from sglang_pd_fabric.integration.tracing import TransferSpan
from sglang_pd_fabric.messenger.liveness import AwakeClock
from sglang_pd_fabric.messenger.messages import Endpoint, Message, Pull
from sglang_pd_fabric.messenger.slots import NoFreeSlotError
from sglang_pd_fabric.messenger.states import FirstToken, PrefillGoneError, RoomInUseError

logger = logging.getLogger(__name__)


class FabricKVReceiver(CommonKVReceiver):  # type: ignore[misc]
    """See ``BaseKVReceiver`` in sglang/srt/disaggregation/base/conn.py; called on the scheduler's thread.

    SGLang keeps what it knows of a request by its room number. A second live request with the same number
    must not touch what is the first one's: it fails here, with a reason of its own.
    """

    first_token: FirstToken = "prefill"
    _concluding = False
    _pulled = False
    _cleared = False
    _ended = False
    _refused: RoomInUseError | None = None

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int) -> None:
        if bootstrap_room in mgr.live_rooms:
            self._refused = RoomInUseError(bootstrap_room, "decode")
        else:
            mgr.begin_room(bootstrap_room)
        super().__init__(mgr, bootstrap_addr, bootstrap_room)
        self._looked = AwakeClock()
        self._span = TransferSpan.of(mgr, bootstrap_room)
        if self._refused is not None:
            self.conclude_state = KVPoll.Failed

    def init(self, prefill_dp_rank: int) -> None:
        super().init(prefill_dp_rank)
        if self.conclude_state is None:
            self.kv_mgr.queue.enter(self.bootstrap_room, self._writers())

    def _get_bootstrap_info_from_server(self, *key: Any) -> dict[str, Any] | None:
        """A rank of the prefill, from what was fetched of its bootstrap server: no request, no waiting."""
        place = RankKey(*(int(number) for number in key))
        entry: dict[str, Any] | None = self.kv_mgr.lookups.rank(self.bootstrap_addr, place)
        if entry is not None:
            entry["pp_rank"] = place.pp
        return entry

    def _register_kv_args(self) -> bool:
        """Introduces us to prefill ranks that we have not met; SGLang remembers that we did."""
        return all(self._tell(writer, self.kv_mgr.decode.hello(writer)) for writer in self._writers())

    def send_metadata(
        self,
        kv_indices: npt.NDArray[np.int32],
        aux_index: int | None = None,
        state_indices: list[Any] | None = None,  # noqa: ARG002  (models with state are refused at start)
        decode_prefix_len: int | None = None,
        destination: KVTransferDestination = KVTransferDestination.DEVICE,
        device_kv_indices: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Arms a completion slot and asks every writer for the pages. Nothing comes back but the pages.

        Raises:
            NotImplementedError: the destination is host memory or split (HiCache, HiSparse).
        """
        if destination != KVTransferDestination.DEVICE or device_kv_indices is not None:
            raise NotImplementedError("the fabric backend writes into the device's KV pool only")
        if self.bootstrap_infos is None or aux_index is None:
            self.fail(f"prefill {self.bootstrap_addr} told us none of its ranks")
            return
        try:
            pull = self.kv_mgr.decode.pull(
                self.bootstrap_room,
                self._writers(),
                kv_indices,
                aux_index,
                decode_prefix_len or 0,
                self.required_dst_info_num,
                prompt=self.kv_mgr.prompts.get(self.bootstrap_room, 0),
                first_token=self.first_token,
                later=True,
            )
        except PrefillGoneError as error:
            self.fail(str(error))
            self.invalidate_cached_bootstrap_infos()
            return
        except (NoFreeSlotError, RoomInUseError) as error:
            self.fail(str(error))
            return
        self._pulled = True
        if self._span is not None:
            nbytes = len(kv_indices) * self.kv_mgr.kv_item_lens_sum
            self._span.pulled(len(kv_indices), nbytes, (writer.host for writer in self._writers()))
        self.kv_mgr.queue.leave(self.bootstrap_room)
        self.init_time = time.time()
        self.kv_mgr.launched.then(lambda: self._ask(pull))

    def _ask(self, pull: Pull) -> None:
        """Sends the Pull; on a GPU not on the scheduler's thread, and perhaps behind the Abort for it."""
        pull = self.kv_mgr.decode.leaving(pull)
        for writer in self._writers():
            if not self.kv_mgr.links.send(writer, pull):
                with self.kv_mgr.status_lock:
                    if not self._cleared:
                        self.kv_mgr.fail_room(self.bootstrap_room, f"prefill {writer} takes no messages")
                        self.invalidate_cached_bootstrap_infos()
                return

    def looked_for(self) -> float:
        """Seconds in which somebody looks whether our prefill is known. Nobody does while decode is full."""
        self._looked.tick()
        return self._looked.seconds

    def poll(self) -> int:
        status = super().poll()
        if self._span is not None and self.conclude_state is not None:
            self._end_span()
        return int(status)

    def abort(self) -> None:
        """The client has gone, or the scheduler gives up."""
        if self._refused is None:
            super().abort()
            if not self._pulled and not self._ended:
                self.kv_mgr.renounced.add(self.bootstrap_room, self.bootstrap_addr)

    def ensure_abort_notified(self, *, force_arm: bool = False) -> None:
        """Tells the writers to stop, once; where there are none, SGLang need not wait for them either."""
        if self._pulled:
            super().ensure_abort_notified(force_arm=force_arm)

    def _send_abort_notification(self, *, force_arm: bool = False) -> None:  # noqa: ARG002
        """In place of SGLang's ABORT frames: the messenger says which pull is meant, and waits for Quiet."""
        if self._pulled:
            self.kv_mgr.decode.abort(self.bootstrap_room, "aborted on decode")

    def failure_exception(self) -> None:
        """Raises why the request failed. Its writers need not be quiet yet."""
        if self._refused is not None:
            raise KVTransferError(self.bootstrap_room, str(self._refused))
        self._concluding = True
        try:
            super().failure_exception()
        finally:
            self._concluding = False

    def clear(self) -> None:
        """Called once when the request succeeded, and twice when it failed: when seen, and at its end."""
        if self._refused is not None:
            return
        self._end_span()
        self.kv_mgr.queue.leave(self.bootstrap_room)
        if not self._cleared:  # later, SGLang's state of the room may be another request's
            self._cleared = True
            with self.kv_mgr.status_lock:
                super().clear()
        if self._concluding or self._ended:
            return
        self._ended = True
        self.kv_mgr.end_room(self.bootstrap_room)
        if self._pulled:
            self.kv_mgr.decode.close(self.bootstrap_room)

    def _end_span(self) -> None:
        """This rank's transfer is over; what another rank says of the request does not change it."""
        span, self._span = self._span, None
        if span is not None:
            well = self.conclude_state == KVPoll.Success
            failure = self._refused or self.kv_mgr.why_failed(self.bootstrap_room)
            span.received(None if well else str(failure))

    def _writers(self) -> list[Endpoint]:
        return [endpoint_of(info) for info in self.bootstrap_infos or ()]

    def _tell(self, prefill: Endpoint, message: Message) -> bool:
        if self.kv_mgr.links.send(prefill, message):
            return True
        self.fail(f"prefill {prefill} takes no messages")
        return False

    def fail(self, reason: str) -> None:
        """Ends the request, and tells its prefill if nothing was asked of that yet: it would wait."""
        self.kv_mgr.fail_room(self.bootstrap_room, reason)
        self.conclude_state = KVPoll.Failed
        if not self._pulled:
            self.kv_mgr.renounced.add(self.bootstrap_room, self.bootstrap_addr)
