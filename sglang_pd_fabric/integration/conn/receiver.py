"""Decode's handle on one request."""

import time
from typing import Any

import numpy as np
import numpy.typing as npt
from sglang.srt.disaggregation.base.conn import KVPoll, KVTransferDestination
from sglang.srt.disaggregation.common.conn import CommonKVReceiver

from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.decode import RoomInUseError
from sglang_pd_fabric.messenger.messages import Endpoint, FirstToken
from sglang_pd_fabric.messenger.slots import NoFreeSlotError


class FabricKVReceiver(CommonKVReceiver):  # type: ignore[misc]
    """See ``BaseKVReceiver`` in sglang/srt/disaggregation/base/conn.py; called on the scheduler's thread."""

    first_token: FirstToken = "prefill"
    _concluding = False
    _pulled = False

    def _register_kv_args(self) -> bool:
        """Introduces us to prefill ranks that we have not met; SGLang remembers that we did."""
        return all(
            self._send_bootstrap_message(
                bootstrap_info=info,
                message=messages.encode(self.kv_mgr.decode.hello(_endpoint(info))),
                operation="_register_kv_args",
            )
            for info in self.bootstrap_infos or ()
        )

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
        frames = messages.encode(pull)
        for info in self.bootstrap_infos:
            if not self._send_bootstrap_message(
                bootstrap_info=info, message=frames, operation="send_metadata"
            ):
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
        return [_endpoint(info) for info in self.bootstrap_infos or ()]

    def _fail(self, reason: str) -> None:
        self.kv_mgr.fail_room(self.bootstrap_room, reason)
        self.conclude_state = KVPoll.Failed


def _endpoint(bootstrap_info: dict[str, Any]) -> Endpoint:
    return Endpoint(str(bootstrap_info["rank_ip"]), int(bootstrap_info["rank_port"]))
