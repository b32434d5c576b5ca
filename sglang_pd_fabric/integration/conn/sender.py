"""Prefill's handle on one request."""

import logging
from typing import Any

import requests
from sglang.srt.disaggregation.base.conn import KVPoll, KVTransferMetric
from sglang.srt.disaggregation.common.conn import CommonKVSender, KVTransferError

from sglang_pd_fabric.integration import metrics
from sglang_pd_fabric.integration.conn.registering import tell
from sglang_pd_fabric.integration.tracing import TransferSpan
from sglang_pd_fabric.messenger.rooms import Sent
from sglang_pd_fabric.messenger.states import FirstToken, RoomInUseError, SendState

logger = logging.getLogger(__name__)


class FabricKVSender(CommonKVSender):  # type: ignore[misc]
    """See ``BaseKVSender`` in sglang/srt/disaggregation/base/conn.py; called on the scheduler's thread.

    A second live request with the room number of another fails here, and touches nothing of that one.
    """

    _refused: RoomInUseError | None = None
    _cleared = False
    _last_given = False
    _reason: str | None = None  # why it failed, when it is over

    # Page ids come as numpy arrays: the plan is built at once, no worker thread waits for a CUDA event.
    supports_host_tensor_indices = False
    first_token: FirstToken = "prefill"

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, *args: Any, **kwargs: Any) -> None:
        try:
            mgr.prefill.open(bootstrap_room)
            mgr.begin_room(bootstrap_room)
        except RoomInUseError as error:
            self._refused = error
        super().__init__(mgr, bootstrap_addr, bootstrap_room, *args, **kwargs)
        self._sent = Sent()
        self._span = TransferSpan.of(mgr, bootstrap_room)
        if self._refused is not None:
            self.conclude_state = KVPoll.Failed
            return
        state, reason = mgr.prefill.poll(bootstrap_room)  # not before SGLang's status is there to be changed
        if state is SendState.READY:
            mgr.update_status(bootstrap_room, KVPoll.WaitingForInput)
        elif state is SendState.FAILED:
            mgr.fail_room(bootstrap_room, reason or "the request failed before it reached prefill")

    def _register_prefill_dp_rank(self) -> None:
        """Tells which DP rank has the request, where decode cannot know it."""
        room = {"bootstrap_room": self.bootstrap_room, "dp_rank": self.kv_mgr.attn_dp_rank}
        url = f"http://{self.bootstrap_server_url}"
        try:
            answer = tell(self.kv_mgr.secret, "POST", url, "/register_dp_rank", room)
            why = "" if answer.status_code == requests.codes.ok else answer.text.strip()[:512]
        except requests.RequestException as error:
            why = str(error)
        if why:
            logger.error("Bootstrap server %s does not take the rank of a room: %s", url, why)

    def pop_decode_prefix_len(self) -> int:
        """Tokens of the prompt that decode already holds."""
        return int(self.kv_mgr.prefill.prefix_tokens(self.bootstrap_room))

    def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
        super().init(num_kv_indices, aux_index)
        prompt = self.kv_mgr.prompts.get(self.bootstrap_room, 0)
        self.kv_mgr.prefill.expect(self.bootstrap_room, num_kv_indices, prompt, self.first_token)

    def send(self, kv_indices: Any, state_indices: Any = None, **rest: Any) -> None:
        """Takes a chunk; with ``state_indices``, be they empty, it is the last."""
        self._last_given |= state_indices is not None
        super().send(kv_indices, state_indices, **rest)

    def poll(self) -> int:
        concluded = self.conclude_state is not None
        status = super().poll()
        if status == KVPoll.Success and not concluded:
            self._sent = self.kv_mgr.prefill.sent(self.bootstrap_room)
            metrics.count(self._sent)
        if self._span is not None and self.conclude_state is not None:
            self._end_span()
        return int(status)

    def get_transfer_metric(self) -> KVTransferMetric:
        """Bytes that really went out, and the time in which they did: no forward pass is counted in."""
        metric = super().get_transfer_metric()
        metric.transfer_total_bytes = self._sent.nbytes
        metric.transfer_latency_s = self._sent.seconds
        return metric

    def _check_bootstrap_timeout(self) -> int | None:
        """Not as long as decode says that it has the request, and no room for it yet."""
        queued = self.kv_mgr.queued_on_decode.get(self.bootstrap_room)
        if queued is not None:
            self.init_time: float = queued[0]
        status: int | None = super()._check_bootstrap_timeout()
        return status

    def abort(self) -> None:
        """Ends the request. One whose pages are all handed over ends when they are no longer being read:
        SGLang polls it until then, whereas it takes the pages of an earlier one back at once.

        Which of the two it is must be the same on every rank, and how far a rank's writes are is not: the
        next use of the room number is let in on all of them, or on none.
        """
        if self._refused is not None or self._cleared:
            return
        reason = "aborted on prefill"
        self.kv_mgr.prefill.fail(self.bootstrap_room, reason)
        if self._last_given:
            if self.kv_mgr.prefill.reason(self.bootstrap_room) is not None:  # else all of it has arrived
                self.kv_mgr.record_failure(self.bootstrap_room, reason)
            return
        super().abort()
        self.clear()  # SGLang may not, and the room number may come again

    def released(self) -> bool:
        """Whether its pages may be freed, now that the request has failed on some rank.

        On this rank it may have gone well so far, and decode could still take what it sends for complete.
        """
        if self._refused is not None or self._cleared:
            return True
        self.kv_mgr.prefill.fail(self.bootstrap_room, "the request has failed on another rank")
        return not self.kv_mgr.prefill.reading(self.bootstrap_room)

    def failure_exception(self) -> None:
        """Raises why the request failed. After an abort between chunks SGLang does not ask."""
        if self._refused is not None:
            raise KVTransferError(self.bootstrap_room, str(self._refused))
        self.conclude_state = KVPoll.Failed
        self.clear()
        self.trace_ctx.trace_req_finish()
        elsewhere = "failed on another rank"
        raise KVTransferError(
            self.bootstrap_room, self._reason or elsewhere, is_from_another_rank=self._reason is None
        )

    def clear(self) -> None:
        if self._refused is not None or self._cleared:
            return
        self._cleared = True
        self._end_span()
        with self.kv_mgr.status_lock:
            with self.kv_mgr.failure_lock:
                self._reason = self.kv_mgr.failure_records.pop(self.bootstrap_room, None)
            if self._reason is not None:
                self.kv_mgr.prefill.fail(self.bootstrap_room, self._reason)
            self.kv_mgr.prefill.close(self.bootstrap_room)
            super().clear()
        self.kv_mgr.end_room(self.bootstrap_room)

    def _end_span(self) -> None:
        """This rank's transfer is over; what another rank says of the request does not change it."""
        span, self._span = self._span, None
        if span is None:
            return
        if self._refused is not None:
            span.sent(Sent(), 0, str(self._refused))
            return
        well = self.conclude_state == KVPoll.Success
        sent = self._sent if well else self.kv_mgr.prefill.sent(self.bootstrap_room)
        reason = None if well else self.kv_mgr.why_failed(self.bootstrap_room)
        span.sent(sent, self.kv_mgr.prefill.handed_over(self.bootstrap_room), reason)
