"""The manager of one scheduler rank: its engine, its messenger and its links to other ranks.

SGLang's ``CommonKVManager`` keeps the rooms' statuses and registers prefill ranks with the bootstrap server.
Here the statuses are tied to what the messenger knows: on prefill a room succeeds when its own writes have
ended, on decode when the slot's count is full. SGLang's HTTP heartbeat is not used: links notice sooner, and
of each rank, when it is gone.
"""

import logging
import secrets
from typing import Any

import numpy as np
import numpy.typing as npt
import requests
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import (
    ABORT_TAG,
    AbortNotification,
    CommonKVManager,
    PrefillServerInfo,
)
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.runtime_context import get_device, get_parallel
from sglang.srt.utils.network import get_local_ip_auto

from sglang_pd_fabric.fabric.placing import Rank
from sglang_pd_fabric.integration import hooks, metrics
from sglang_pd_fabric.integration.conn.endpoints import endpoint_of, open_links
from sglang_pd_fabric.integration.conn.registering import ask, register
from sglang_pd_fabric.integration.conn.unwanted import UnwantedRooms
from sglang_pd_fabric.integration.describe import layout_record, refuse_unsupported
from sglang_pd_fabric.integration.engine import Pool, open_engine, register_pool
from sglang_pd_fabric.integration.gpu import gpu_address
from sglang_pd_fabric.integration.gpu_bytes import gather
from sglang_pd_fabric.integration.planning import ChunkPlanner
from sglang_pd_fabric.integration.progress import progress_word
from sglang_pd_fabric.integration.shared_pools import shared_memory
from sglang_pd_fabric.integration.trace import Trace
from sglang_pd_fabric.messenger.decode import DecodeMessenger
from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import (
    Again,
    Digest,
    Endpoint,
    Failure,
    Hello,
    Message,
    Pull,
    Ready,
    Refusal,
    Spoiled,
    Unwanted,
    Welcome,
)
from sglang_pd_fabric.messenger.prefill import PrefillMessenger
from sglang_pd_fabric.messenger.states import Held, ReceiveState, SendState
from sglang_pd_fabric.settings import load_settings, read_secret

logger = logging.getLogger(__name__)


class FabricKVManager(CommonKVManager):  # type: ignore[misc]
    """See ``BaseKVManager`` in sglang/srt/disaggregation/base/conn.py for who calls what, on which thread.

    Raises:
        HooksMissingError: SGLang runs without one of our hooks.
        UnsupportedConfigurationError: the model or the parallel layout is not served.
        SettingError: a setting is wrong.
        FabricError: libfabric or the provider cannot be used.
    """

    reports_transfer_latency = True
    supports_deferred_decode_kv_release = True

    def __init__(
        self,
        args: Any,
        disaggregation_mode: DisaggregationMode,
        server_args: Any,
        is_mla_backend: bool | None = False,
    ) -> None:
        hooks.require_installed()
        parallel = get_parallel()
        refuse_unsupported(args, parallel)
        settings = load_settings()
        # Everything that can fail comes before the base class announces this rank to the bootstrap server.
        layerwise = settings.layerwise == 1 and disaggregation_mode is DisaggregationMode.PREFILL
        pool = Pool.find([*args.kv_data_ptrs, *args.aux_data_ptrs], [*args.kv_data_lens, *args.aux_data_lens])
        rank = Rank(gpu_address(args.gpu_id) if pool.gpu else None, args.gpu_id)
        device = get_device().device.partition(":")[0]
        word = progress_word(device) if layerwise else 0
        engine = open_engine(settings, get_local_ip_auto(), args.ib_device, rank, word)
        layout = layout_record(
            args, server_args, parallel, settings, is_mla=bool(is_mla_backend), provider=engine.profile.name
        )
        regions = register_pool(engine, pool)
        if layout.integrity:
            logger.info("Checksums of every request are sent and compared (SGLANG_PD_FABRIC_INTEGRITY=1)")
        kv, aux = regions[: len(args.kv_data_ptrs)], regions[len(args.kv_data_ptrs) :]
        self.secret = read_secret(settings)
        self.links = open_links(settings, get_local_ip_auto(), self.secret)
        super().__init__(args, disaggregation_mode, server_args, is_mla_backend)
        self._take_over_control()
        self.engine = engine
        self._shown: tuple[Held, int] | None = None
        self._trace = Trace(settings.trace, disaggregation_mode.value)
        if disaggregation_mode is DisaggregationMode.PREFILL:
            self.prefill = PrefillMessenger(engine, layout, kv, aux, self._send, settings.same_host, gather)
            self.planner = ChunkPlanner(
                self.prefill,
                self._trace.word(engine.progress),
                layerwise=layerwise,
                launches=device != "cpu",
                note=lambda forward: self._trace.note("pass", forward=forward.number),
            )
            self.links.start(
                self._on_prefill, self._lost_on_prefill, self._tick_on_prefill, self._raw_on_prefill
            )
        else:
            incarnation = secrets.randbits(64)
            shared = shared_memory(engine, args)
            self.decode = DecodeMessenger(
                engine, layout, kv, aux, incarnation, self.links.endpoint, self._send, shared, gather
            )
            self.unwanted = UnwantedRooms(self._send, self.secret, speaks=self.attn_tp_rank == 0)
            self.links.start(self._on_decode, self._lost_on_decode, self._tick_on_decode, self._raw_on_decode)

    # -- both sides ----------------------------------------------------------------------------------

    def register_to_bootstrap(self) -> None:
        """Announces our own control endpoint. The base class calls this on prefill, while it is made."""
        self._take_over_control()
        super().register_to_bootstrap()

    def _register_topology_row(self, url: str, payload: dict[str, Any]) -> None:
        base, slash, path = url.rpartition("/")
        register(self.secret, base, slash + path, payload)

    def _take_over_control(self) -> None:
        """Our links take the place of the base class's socket."""
        self.server_socket.close(linger=0)
        self.local_ip, self.rank_port = self.links.endpoint.host, self.links.endpoint.port

    def check_status(self, bootstrap_room: int) -> int:
        """The room's status after a look at the messenger. Called for every room in every iteration."""
        status = self.request_status.get(bootstrap_room)
        if status is None:  # another request with the same room has ended, and took the status with it
            return int(KVPoll.Failed)
        if status in (KVPoll.Bootstrapping, KVPoll.WaitingForInput):
            done, reason = self._ask_messenger(bootstrap_room)
            if done:
                self._trace.note("complete", room=bootstrap_room)
                self.update_status(bootstrap_room, KVPoll.Success)
            elif reason is not None:
                self.fail_room(bootstrap_room, reason)
        return int(self.request_status[bootstrap_room])

    def _ask_messenger(self, room: int) -> tuple[bool, str | None]:
        if self.disaggregation_mode is DisaggregationMode.PREFILL:
            sending, reason = self.prefill.poll(room)
            return sending is SendState.DONE, reason
        receiving, reason = self.decode.poll(room)
        return receiving is ReceiveState.COMPLETE, reason

    def fail_room(self, room: int, reason: str) -> None:
        """Marks the room failed; the first reason stays."""
        with self.failure_lock:
            self.failure_records.setdefault(room, reason)
        self.update_status(room, KVPoll.Failed)

    def _show(self, held: Held) -> None:
        """Keeps the gauges on /metrics true: a tick is never far."""
        remembered = len(self.request_status) + len(self.failure_records)
        if (held, remembered) != self._shown:
            metrics.show(held, remembered)
            self._shown = (held, remembered)

    # -- prefill -------------------------------------------------------------------------------------

    def add_transfer_request(
        self,
        bootstrap_room: int,
        kv_indices: npt.NDArray[np.int32],
        index_slice: slice,
        is_last_chunk: bool,
        aux_index: int | None = None,
        **_unused: Any,
    ) -> None:
        """Hands a chunk's pages, and after the last one the metadata row, to the engine."""
        if self.request_status.get(bootstrap_room) == KVPoll.Failed:
            return
        self.planner.chunk_ended(bootstrap_room)
        self.prefill.send(bootstrap_room, kv_indices, index_slice.start)
        if is_last_chunk and aux_index is not None:
            self.prefill.finish(bootstrap_room, aux_index)

    def _send(self, endpoint: Endpoint, message: Message) -> None:
        self.links.send(endpoint, message)

    def _raw_on_prefill(self, frames: list[bytes]) -> bool:
        if frames[0] != ABORT_TAG:
            return False
        self._handle_abort(frames)
        return True

    def _on_prefill(self, message: Message) -> None:
        if isinstance(message, Hello):
            self.prefill.on_hello(message)
        elif isinstance(message, Ready):
            for room in self.prefill.on_ready(message):
                self._adopt(room, self.prefill.poll(room)[0])
        elif isinstance(message, Pull):
            self._trace.note("pull", room=message.room, slot=message.slot, generation=message.generation)
            self._adopt(message.room, self.prefill.on_pull(message))
        elif isinstance(message, Unwanted):
            self.prefill.fail(message.room, message.reason)
            self._adopt_failure(message.room)
        elif isinstance(message, Again) and self.prefill.on_again(message) is SendState.FAILED:
            self._adopt_failure(message.room)

    def _lost_on_prefill(self, decode: Endpoint, loss: Loss) -> None:
        for room in self.prefill.lost(decode, loss):
            self._adopt_failure(room)

    def _adopt(self, room: int, state: SendState) -> None:
        """What a message did to a room in the messenger, it does to SGLang's."""
        if state is SendState.READY and room in self.request_status:
            self.update_status(room, KVPoll.WaitingForInput)
        elif state is SendState.FAILED:
            self._adopt_failure(room)

    def _handle_abort(self, frames: list[bytes]) -> None:
        notification = AbortNotification.from_zmq(frames)
        if notification is None:
            return
        room = notification.room
        self.prefill.fail(room, "aborted by decode")
        self._adopt_failure(room)
        target = notification.deferred_ack_target()
        if target is not None:
            self.register_deferred_ack_target(room, target)
            self._maybe_ack_drained_abort(room)

    def _adopt_failure(self, room: int) -> None:
        """A room that has failed in the messenger fails here too, with the messenger's reason: the first.

        Not while its pages are being read; the scheduler's poll sees to it then.
        """
        if self.request_status.get(room) not in (None, KVPoll.Success):
            state, reason = self.prefill.poll(room)
            if state is SendState.FAILED:
                self.fail_room(room, reason or "failed")

    def _maybe_ack_drained_abort(self, room: int) -> None:
        """Confirms an abort once no write of the room can be on a wire any more."""
        if self.prefill.quiet(room):
            super()._maybe_ack_drained_abort(room)

    def _tick_on_prefill(self) -> None:
        self.prefill.sweep()
        for room in list(self._deferred_ack_targets):
            self._maybe_ack_drained_abort(room)
        self._trace.write(self.engine)
        self._show(self.prefill.held())

    # -- decode --------------------------------------------------------------------------------------

    def _raw_on_decode(self, frames: list[bytes]) -> bool:
        return bool(self.handle_abort_ack_message(frames))

    def _on_decode(self, message: Message) -> None:
        if isinstance(message, Welcome):
            answer = self.decode.on_welcome(message)
            if answer is not None:
                self._send(message.prefill, answer)
        elif isinstance(message, Refusal):
            self.decode.on_refusal(message)
        elif isinstance(message, Failure):
            self.decode.on_failure(message)
        elif isinstance(message, Spoiled):
            self.decode.on_spoiled(message)
        elif isinstance(message, Digest):
            self.decode.on_digest(message)

    def _tick_on_decode(self) -> None:
        self._trace.write(self.engine)
        self._show(self.decode.held())

    def clear_deferred_abort_state(self, bootstrap_room: int) -> None:
        """SGLang has released the pages of an aborted room: its writers were quiet, or it gave up waiting."""
        super().clear_deferred_abort_state(bootstrap_room)
        self.decode.close(bootstrap_room, quiet=True)

    def _lost_on_decode(self, prefill: Endpoint, loss: Loss) -> None:
        """A prefill rank is gone. What we know of its server may be of an earlier start of it by now."""
        self._forget_server(prefill)
        self.decode.lost(prefill, loss)

    def _forget_server(self, prefill: Endpoint) -> None:
        with self.connection_lock:
            servers = {
                key.rsplit("_", 3)[0]  # SGLang's key: bootstrap address, DP, CP and TP rank
                for key, infos in self.connection_pool.items()
                if any(endpoint_of(info) == prefill for info in infos)
            }
            for key in [key for key in self.connection_pool if key.rsplit("_", 3)[0] in servers]:
                del self.connection_pool[key]
            for server in servers:
                self.prefill_info_table.pop(server, None)

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        """Fetches what a prefill server says of itself.

        SGLang's own version raises out of the scheduler's loop when the two sides differ, which ends the
        process. We leave differences to the compatibility check, which costs only the request.
        """
        if bootstrap_addr in self.prefill_info_table:
            return True
        everyone = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
        try:
            # Anything may answer there: a client names the address.
            response = ask(self.secret, bootstrap_addr, f"/route?{everyone}")
            if response.status_code != requests.codes.ok:
                logger.warning("Bootstrap server %s is not ready: %s", bootstrap_addr, response.text.strip())
                return False
            info = PrefillServerInfo(**response.json())
        except Exception as error:
            logger.warning("Bootstrap server %s does not answer as one: %s", bootstrap_addr, error)
            return False
        try:
            self._resolve_rank_mapping(info)
        except Exception as error:
            logger.error("Ranks of prefill %s cannot be paired with ours: %s", bootstrap_addr, error)
            # Its first rank will refuse us, with the fields that differ, so that both sides know.
            info.target_tp_rank = 0
            info.target_tp_ranks, info.target_cp_ranks, info.target_pp_ranks = [0], [0], [0]
            info.required_dst_info_num = info.required_prefill_response_num = 1
        self.prefill_info_table[bootstrap_addr] = info
        return True
