"""The manager of one scheduler rank: its engine, its messenger and its links to other ranks.

SGLang's ``CommonKVManager`` keeps the rooms' statuses and registers prefill ranks with the bootstrap server.
Here the statuses are tied to what the messenger knows: on prefill a room succeeds when its own writes have
ended, on decode when the slot's count is full. SGLang's HTTP heartbeat is not used: links notice sooner, and
of each rank, when it is gone.
"""

import dataclasses
import itertools
import logging
import math
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.common.conn import CommonKVManager, PrefillServerInfo
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.runtime_context import get_device, get_parallel
from sglang.srt.utils.network import get_local_ip_auto

from sglang_pd_fabric.fabric.placing import Rank
from sglang_pd_fabric.integration import hooks, metrics
from sglang_pd_fabric.integration.conn.endpoints import open_links
from sglang_pd_fabric.integration.conn.lookups import Lookups, RankKey
from sglang_pd_fabric.integration.conn.registering import register
from sglang_pd_fabric.integration.conn.renounced import RenouncedRooms
from sglang_pd_fabric.integration.conn.showing import Showing
from sglang_pd_fabric.integration.describe import layout_record, refuse_early_release, refuse_unsupported
from sglang_pd_fabric.integration.engine import Pool, open_engine, register_pool
from sglang_pd_fabric.integration.failures import kind_of
from sglang_pd_fabric.integration.gpu import gpu_address
from sglang_pd_fabric.integration.gpu_bytes import gather
from sglang_pd_fabric.integration.http.refusals import REFUSED
from sglang_pd_fabric.integration.planning import ChunkPlanner
from sglang_pd_fabric.integration.progress import progress_word
from sglang_pd_fabric.integration.shared_pools import shared_memory
from sglang_pd_fabric.integration.trace import Trace
from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.decode import DecodeMessenger
from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import MAX_REASON, NO_SLOT, Endpoint, Message
from sglang_pd_fabric.messenger.prefill import PrefillMessenger
from sglang_pd_fabric.messenger.queue import DecodeQueue
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
        refuse_unsupported(args, server_args, parallel)
        if disaggregation_mode is DisaggregationMode.DECODE:
            refuse_early_release()
        settings = load_settings()
        # Everything that can fail comes before the base class announces this rank to the bootstrap server.
        layerwise = settings.layerwise == 1 and disaggregation_mode is DisaggregationMode.PREFILL
        pool = Pool.find([*args.kv_data_ptrs, *args.aux_data_ptrs], [*args.kv_data_lens, *args.aux_data_lens])
        rank = Rank(gpu_address(args.gpu_id) if pool.gpu else None, args.gpu_id)
        device = get_device().device.partition(":")[0]
        word = progress_word(device) if layerwise else 0
        engine = open_engine(settings, get_local_ip_auto(), args.ib_device, rank, word)
        metrics.show_nics(engine.profile.name, len(engine.nics))
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
        # What SGLang knows of a room is taken away by the scheduler's thread, changed by the links'.
        self.status_lock = threading.RLock()
        self.live_rooms: set[int] = set()  # whose requests SGLang is not done with; the scheduler's thread's
        self.prompts: dict[int, int] = {}  # digests of theirs
        self.entering: Any = None  # the request that is being taken in: its sender or receiver is made now
        self.queued_on_decode: dict[int, tuple[float, Endpoint]] = {}  # when we last heard so, and of which
        self._showing = Showing(engine, self.links)
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
            self.links.start(self._on_prefill, self._lost_on_prefill, self._tick_on_prefill)
        else:
            incarnation = secrets.randbits(64)
            shared = shared_memory(engine, args)
            self.decode = DecodeMessenger(
                engine,
                layout,
                kv,
                aux,
                incarnation,
                self.links.endpoint,
                self._send,
                shared,
                gather,
                hold_s=settings.hold_s or math.inf,
            )
            self.queue = DecodeQueue(self.links.endpoint, self._send)
            self.lookups = Lookups(self.secret, self._pair, self.prefill_info_table.__setitem__)
            self.renounced = RenouncedRooms(self.lookups, self.links)
            self.links.start(self._on_decode, self._lost_on_decode, self._tick_on_decode)

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
            first = room not in self.failure_records
            self.failure_records.setdefault(room, reason)
        if first:
            metrics.count_failure(kind_of(reason))
        self.update_status(room, KVPoll.Failed)

    def record_failure(self, bootstrap_room: int, failure_reason: str) -> None:
        """SGLang's own failures come here too."""
        if bootstrap_room not in self.failure_records:
            metrics.count_failure(kind_of(failure_reason))
        super().record_failure(bootstrap_room, failure_reason)

    def why_failed(self, room: int) -> str:
        """Why the request failed, of which this rank may know nothing."""
        with self.failure_lock:
            return self.failure_records.get(room) or "failed on another rank"

    def begin_room(self, room: int) -> None:
        """A request begins: what SGLang has left of an earlier one with this room is not its own."""
        self.live_rooms.add(room)
        self.request_status.pop(room, None)
        with self.failure_lock:
            self.failure_records.pop(room, None)

    def end_room(self, room: int) -> None:
        """SGLang is done with the request: its room may be used again."""
        with self.status_lock:
            self.live_rooms.discard(room)
            self.queued_on_decode.pop(room, None)
        self.prompts.pop(room, None)

    def _show(self, held: Held) -> None:
        """Keeps /metrics true: a tick is never far."""
        remembered = len(self.request_status) + len(self.failure_records)
        self._showing.show(held, remembered)

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

    def _on_prefill(self, message: Message) -> None:
        if isinstance(message, messages.Hello):
            self.prefill.on_hello(message)
        elif isinstance(message, messages.Ready):
            for room in self.prefill.on_ready(message):
                self._adopt(room, self.prefill.poll(room)[0])
        elif isinstance(message, messages.Pull):
            self._trace.note("pull", room=message.room, slot=message.slot, generation=message.generation)
            self._adopt(message.room, self.prefill.on_pull(message))
        elif isinstance(message, messages.Again):
            self._adopt(message.room, self.prefill.on_again(message))
        elif isinstance(message, messages.Abort):
            self._adopt(message.room, self.prefill.on_abort(message))
        elif isinstance(message, messages.Counting):
            self.prefill.on_counting(message)
        elif isinstance(message, messages.Queued):
            self._note_queued(message)
        elif isinstance(message, messages.Renounced):
            self._refuse(message.room, "ended on decode before its pages were asked for")
        elif isinstance(message, messages.Refused):
            self._refuse(message.room, REFUSED + message.reason)

    def _refuse(self, room: int, reason: str) -> None:
        """Nobody will pull the room: it fails, or will as soon as the scheduler has it."""
        self.prefill.refuse(room, reason)
        self._adopt_failure(room)

    def _note_queued(self, queued: messages.Queued) -> None:
        """Rooms that decode will pull when it has memory for them, but for those that have failed here."""
        for room in queued.rooms:
            reason = self.prefill.reason(room)
            if reason is not None:
                failure = messages.Failure(
                    queued.prefill, self.prefill.incarnation, room, 0, NO_SLOT, reason[:MAX_REASON]
                )
                self._send(queued.reply, failure)
                continue
            with self.status_lock:
                if room in self.live_rooms:  # the clock of SGLang's time-out
                    self.queued_on_decode[room] = (time.time(), queued.reply)

    def _lost_on_prefill(self, decode: Endpoint, loss: Loss) -> None:
        for room in self.prefill.lost(decode, loss):
            self._adopt_failure(room)
        for room, (_when, reply) in list(self.queued_on_decode.items()):
            if reply == decode:
                self.prefill.fail(room, f"lost decode {decode}: {loss.value}")
                self._adopt_failure(room)

    def _adopt(self, room: int, state: SendState | None) -> None:
        """What a message did to a room in the messenger, it does to SGLang's."""
        if state is SendState.READY:
            with self.status_lock:
                if room in self.request_status:
                    self.update_status(room, KVPoll.WaitingForInput)
        elif state is SendState.FAILED:
            self._adopt_failure(room)

    def _adopt_failure(self, room: int) -> None:
        """A room that has failed in the messenger fails here too, with the messenger's reason: the first.

        Not while its pages are being read; the scheduler's poll sees to it then.
        """
        with self.status_lock:
            if self.request_status.get(room) not in (None, KVPoll.Success):
                state, reason = self.prefill.poll(room)
                if state is SendState.FAILED:
                    self.fail_room(room, reason or "the request has failed on prefill")

    def _tick_on_prefill(self) -> None:
        for room in self.prefill.sweep():
            self._adopt(room, SendState.READY)
        self._trace.write(self.engine)
        self._show(self.prefill.held())

    # -- decode --------------------------------------------------------------------------------------

    def _on_decode(self, message: Message) -> None:
        if isinstance(message, messages.Welcome):
            answer = self.decode.on_welcome(message)
            if answer is not None:
                self._send(message.prefill, answer)
        elif isinstance(message, messages.Refusal):
            self.decode.on_refusal(message)
        elif isinstance(message, messages.Failure):
            if message.generation == NO_SLOT:
                self._fail_waiting(message.room, message.reason)
            self.decode.on_failure(message)
        elif isinstance(message, messages.Spoiled):
            self.decode.on_spoiled(message)
        elif isinstance(message, messages.Digest):
            self.decode.on_digest(message)
        elif isinstance(message, messages.Quiet):
            self.decode.on_quiet(message)
        elif isinstance(message, messages.Over):
            self.decode.on_over(message)

    def _fail_waiting(self, room: int, reason: str) -> None:
        """A room that waits for memory fails, if it still waits."""
        with self.status_lock:
            if self.queue.waits(room):
                self.fail_room(room, reason)

    def _tick_on_decode(self) -> None:
        for room in self.queue.tell():
            self._fail_waiting(room, "decode stood still for so long that prefill has given the request up")
        self.renounced.tell()
        self.decode.sweep()
        self._trace.write(self.engine)
        self._show(self.decode.held())

    def is_abort_release_safe(self, bootstrap_room: int, required_acks: int) -> bool:
        """Whether SGLang may give the pages of an aborted room to another request.

        Args:
            required_acks: 0: this rank waits for nobody, and holds the request's pages because another does.
        """
        return required_acks == 0 or self.decode.released(bootstrap_room)

    def _lost_on_decode(self, prefill: Endpoint, loss: Loss) -> None:
        """A prefill rank is gone. What we know of its server may be of an earlier start of it by now."""
        self._forget_server(prefill)
        for room in self.queue.waiting_for(prefill):
            self._fail_waiting(room, f"prefill {prefill} is gone: {loss.value}")
        self.decode.lost(prefill, loss)

    def _forget_server(self, prefill: Endpoint) -> None:
        for server in self.lookups.servers_of(prefill):
            self.lookups.drop(server)
            with self.connection_lock:
                self.prefill_info_table.pop(server, None)
                for key in [key for key in self.connection_pool if key.rsplit("_", 3)[0] == server]:
                    del self.connection_pool[key]  # SGLang's: bootstrap address, DP, CP and TP rank

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        """Whether it is known what a prefill server says of itself; it is being asked otherwise.

        SGLang's own version waits for the answer, and raises out of the scheduler's loop when the two
        sides differ, which ends the process. We leave that to the compatibility check: it costs the request.
        """
        return self.lookups.ask(bootstrap_addr) is not None

    def _pair(self, answer: dict[str, Any]) -> tuple[PrefillServerInfo, Iterator[RankKey]]:
        """A prefill server's word about itself, and the ranks of it that this rank will meet."""
        known = {field.name for field in dataclasses.fields(PrefillServerInfo)}
        info = PrefillServerInfo(**{name: value for name, value in answer.items() if name in known})
        try:
            self._resolve_rank_mapping(info)
        except Exception as error:
            logger.error("Ranks of a prefill cannot be paired with ours: %s", error)
            # Its first rank will refuse us, with the fields that differ, so that both sides know.
            info.target_tp_rank = 0
            info.target_tp_ranks, info.target_cp_ranks, info.target_pp_ranks = [0], [0], [0]
            info.required_dst_info_num = info.required_prefill_response_num = 1
        places = info.target_cp_ranks, info.target_tp_ranks, info.target_pp_ranks
        return info, itertools.starmap(RankKey, itertools.product(range(info.dp_size), *places))
