"""Prefill's handle on one request."""

import logging
from typing import Any

import requests
from sglang.srt.disaggregation.base.conn import KVPoll, KVTransferMetric
from sglang.srt.disaggregation.common.conn import CommonKVSender

from sglang_pd_fabric.integration import metrics
from sglang_pd_fabric.integration.conn.registering import tell
from sglang_pd_fabric.messenger.rooms import Sent
from sglang_pd_fabric.messenger.states import FirstToken, SendState

logger = logging.getLogger(__name__)


class FabricKVSender(CommonKVSender):  # type: ignore[misc]
    """See ``BaseKVSender`` in sglang/srt/disaggregation/base/conn.py; called on the scheduler's thread."""

    # Page ids come as numpy arrays: the plan is built at once, no worker thread waits for a CUDA event.
    supports_host_tensor_indices = False
    first_token: FirstToken = "prefill"

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(mgr, bootstrap_addr, bootstrap_room, *args, **kwargs)
        self._sent = Sent()
        state, reason = mgr.prefill.open(bootstrap_room)
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
        self.kv_mgr.prefill.expect(self.bootstrap_room, num_kv_indices, self.first_token)

    def poll(self) -> int:
        concluded = self.conclude_state is not None
        status = super().poll()
        if status == KVPoll.Success and not concluded:
            self._sent = self.kv_mgr.prefill.sent(self.bootstrap_room)
            metrics.count(self._sent)
        return int(status)

    def get_transfer_metric(self) -> KVTransferMetric:
        """Bytes that really went out, and the time in which they did: no forward pass is counted in."""
        metric = super().get_transfer_metric()
        metric.transfer_total_bytes = self._sent.nbytes
        metric.transfer_latency_s = self._sent.seconds
        return metric

    def abort(self) -> None:
        """Ends the request. One whose pages are all handed over ends when they are no longer being read:
        SGLang polls it until then, whereas it takes the pages of an earlier one back at once."""
        reason = "aborted on prefill"
        self.kv_mgr.prefill.fail(self.bootstrap_room, reason)
        if self.kv_mgr.prefill.reading(self.bootstrap_room):
            self.kv_mgr.record_failure(self.bootstrap_room, reason)
            return
        super().abort()
        self.kv_mgr.prefill.close(self.bootstrap_room)

    def clear(self) -> None:
        with self.kv_mgr.failure_lock:
            reason = self.kv_mgr.failure_records.get(self.bootstrap_room)
        if reason is not None:
            self.kv_mgr.prefill.fail(self.bootstrap_room, reason)
        self.kv_mgr.prefill.close(self.bootstrap_room)
        super().clear()
