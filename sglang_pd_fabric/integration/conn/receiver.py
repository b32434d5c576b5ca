"""Decode's handle on one request."""

import logging
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import requests
from sglang.srt.disaggregation.base.conn import KVPoll, KVTransferDestination
from sglang.srt.disaggregation.common.conn import CommonKVReceiver

from sglang_pd_fabric.integration.conn.endpoints import endpoint_of
from sglang_pd_fabric.integration.conn.registering import ask
from sglang_pd_fabric.messenger.decode import RoomInUseError
from sglang_pd_fabric.messenger.messages import Endpoint, Message
from sglang_pd_fabric.messenger.slots import NoFreeSlotError
from sglang_pd_fabric.messenger.states import FirstToken

logger = logging.getLogger(__name__)


class FabricKVReceiver(CommonKVReceiver):  # type: ignore[misc]
    """See ``BaseKVReceiver`` in sglang/srt/disaggregation/base/conn.py; called on the scheduler's thread."""

    first_token: FirstToken = "prefill"
    _concluding = False
    _pulled = False

    def _get_bootstrap_info_from_server(self, *place: int) -> dict[str, Any] | None:
        names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
        query = "&".join(f"{name}={rank}" for name, rank in zip(names, place, strict=True))
        try:
            answer = ask(self.kv_mgr.secret, self.bootstrap_addr, f"/route?{query}")
            if answer.status_code == requests.codes.ok:
                return {**answer.json(), "pp_rank": int(place[-1])}
            logger.error("Bootstrap server %s: %s", self.bootstrap_addr, answer.text.strip()[:512])
        except Exception as error:
            logger.error("Bootstrap server %s: %s", self.bootstrap_addr, error)
        return None

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
            self._fail(f"prefill {self.bootstrap_addr} told us none of its ranks")
            return
        try:
            pull = self.kv_mgr.decode.pull(
                self.bootstrap_room,
                self._writers(),
                kv_indices,
                aux_index,
                decode_prefix_len or 0,
                self.required_dst_info_num,
                self.first_token,
            )
        except (NoFreeSlotError, RoomInUseError) as error:
            self._fail(str(error))
            return
        self._pulled = True
        for writer in self._writers():
            if not self._tell(writer, pull):
                self.invalidate_cached_bootstrap_infos()
                return
        self.init_time = time.time()

    def failure_exception(self) -> None:
        """Raises why the request failed. Its writers need not be quiet yet."""
        self._concluding = True
        try:
            super().failure_exception()
        finally:
            self._concluding = False

    def clear(self) -> None:
        """Called once when the request succeeded, and twice when it failed: when seen, and at its end."""
        super().clear()
        if self._pulled:  # otherwise the room may be another request's
            self.kv_mgr.decode.close(self.bootstrap_room, quiet=not self._concluding)

    def _writers(self) -> list[Endpoint]:
        return [endpoint_of(info) for info in self.bootstrap_infos or ()]

    def _tell(self, prefill: Endpoint, message: Message) -> bool:
        if self.kv_mgr.links.send(prefill, message):
            return True
        self._fail(f"prefill {prefill} takes no messages")
        return False

    def _fail(self, reason: str) -> None:
        self.kv_mgr.fail_room(self.bootstrap_room, reason)
        self.conclude_state = KVPoll.Failed
