"""The transfer engine as Python sees it: a thin, typed skin over the core.

One engine joins a GPU (or the CPU) with its NICs; its I/O thread needs no GIL. Sizes in bytes, times in s.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_pd_fabric.fabric import shared_memory
from sglang_pd_fabric.fabric._core import ffi, lib
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import Library, check
from sglang_pd_fabric.fabric.mapped import Share, SharedMemory, SharedRegion, attach_all
from sglang_pd_fabric.fabric.memory import HostMemory, Memory
from sglang_pd_fabric.fabric.memory.cuda import Driver
from sglang_pd_fabric.fabric.opening import Opening, nanoseconds
from sglang_pd_fabric.fabric.profiles import Profile
from sglang_pd_fabric.fabric.progress import ProgressWord, TraceEvent, take_trace
from sglang_pd_fabric.fabric.records import EngineStats, NicInfo
from sglang_pd_fabric.fabric.registration import Progress, Registration
from sglang_pd_fabric.fabric.transfer import Transfer

SLOT_BYTES = 8  # a completion slot is one word


@dataclass(frozen=True)
class Region:
    """A registered memory region: what a peer needs to write into it, and its index for us."""

    index: int
    base: int
    nbytes: int
    keys: tuple[int, ...]
    by_dmabuf: bool = False  # GPU memory: its NICs took a dmabuf, not the address
    memory: Memory | None = None  # where it lies, when it is our own; ``base`` may be 0


class Peer:
    """Another engine that we may write to. Made by ``Engine.add_peer`` or ``Engine.map_peer``."""

    def __init__(self, engine: "Engine", handle: Any, mappings: Sequence[SharedMemory] = ()) -> None:
        self._engine = engine
        self._handle = handle
        self._mappings = list(mappings)

    @property
    def handle(self) -> Any:
        """The core's handle.

        Raises:
            FabricError: the peer was removed.
        """
        if self._handle is None:
            raise FabricError("the peer was removed")
        return self._handle

    def remove(self) -> None:
        """Forgets it: unfinished transfers fail, and are quiet soon, or, where writes outlive their peer
        (profile), when the last was reported."""
        with self._engine.lock:
            if self._handle is not None and not self._engine.closed:
                lib.spf_peer_remove(self._engine.handle, self._handle)
            self._handle = None
            while self._mappings:
                self._mappings.pop().close()


class Engine:
    """Opens NICs and starts the I/O thread.

    Args:
        library: an open libfabric.
        profile: the provider's profile.
        sources: for each NIC the local address to bind, or None for the provider's choice (on shm: for
            a name of ours).
        domains: for each NIC libfabric's name of it (``Profile.domain``), or None for the first there is.
        gpu: memory of a GPU will be registered.
        slots: number of completion slots.
        spin: seconds that the I/O thread spins after its last event before it sleeps.
        gate_spin: the same while a plan waits for the progress word; infinite where a GPU stores it.
        stall: seconds after which a transfer whose peer takes nothing has failed.
        absence: seconds of silence after which those that write to us may give us up, as after ``stall``.
        limit: seconds after which a transfer has failed, however well it goes; 0 for no limit.
        trace: room for so many events of the I/O thread (``take_trace``); 0 for none.
        progress_word: address of memory for the progress word that a GPU can store into; 0 for our own.
        share_slots: whether peers on this host may map the completion slots (``slot_share``).
        cpus: where the I/O thread runs, from before it opens the NICs; empty: wherever this process may.

    Raises:
        FabricError: a CPU may not be used, or a NIC could not be opened; the message names the call and
            its arguments. On shm also: ``/dev/shm`` is too small.
    """

    def __init__(
        self,
        library: Library,
        profile: Profile,
        *,
        sources: Sequence[str | None] = (None,),
        domains: Sequence[str | None] = (),
        gpu: bool = False,
        slots: int = 8192,
        spin: float = 50e-6,
        gate_spin: float = 50e-6,
        stall: float = 10.0,
        absence: float = 5.0,
        limit: float = 0.0,
        trace: int = 0,
        progress_word: int = 0,
        share_slots: bool = False,
        cpus: Sequence[int] = (),
    ) -> None:
        self.library = library
        self.profile = profile
        if profile.single_host:
            shared_memory.remove_stale()
            sources = [source or shared_memory.new_endpoint_name() for source in sources]
        opening = Opening(profile, library.version, sources=sources, domains=domains, gpu=gpu, cpus=cpus)
        self._gpu = gpu
        self.slot_count = slots
        self.stall = stall
        self._slot_memory = SharedMemory.create(slots * SLOT_BYTES) if share_slots else None
        opening.config.slot_count = slots
        if self._slot_memory is not None:
            opening.config.slot_words = ffi.cast("uint64_t *", self._slot_memory.address)
        opening.config.spin_ns = nanoseconds(spin)
        opening.config.gate_spin_ns = nanoseconds(gate_spin)
        opening.config.stall_ns = nanoseconds(stall)
        opening.config.absence_ns = nanoseconds(absence)
        opening.config.limit_ns = nanoseconds(limit)
        opening.config.trace_events = trace
        opening.config.progress_word = ffi.cast("uint64_t *", progress_word)
        out, error = ffi.new("spf_engine **"), ffi.new("spf_error *")
        check(lib.spf_engine_open(library.handle, opening.config, out, error), error)
        self._handle = out[0]
        self._option_names = opening.option_names
        self.lock = threading.Lock()  # held by calls that a close must not overtake
        self._owners: list[object] = []
        self._transfers: set[Transfer] = set()
        self.progress = ProgressWord(self)
        self.nics = [self._nic(index) for index in range(len(sources))]
        if profile.single_host:
            self._reserve()

    @property
    def handle(self) -> Any:
        """The core's handle.

        Raises:
            FabricError: the engine is closed.
        """
        if self._handle is None:
            raise FabricError("the engine is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def _reserve(self) -> None:
        try:
            shared_memory.reserve(nic.address for nic in self.nics)
        except FabricError:
            self.close()
            raise

    def _nic(self, index: int) -> NicInfo:
        raw = ffi.new("spf_nic_info *")
        lib.spf_engine_nic(self.handle, index, raw)
        return NicInfo(
            provider=ffi.string(raw.provider).decode(),
            fabric=ffi.string(raw.fabric).decode(),
            domain=ffi.string(raw.domain).decode(),
            address=bytes(ffi.buffer(raw.address, raw.address_bytes)),
            segments=raw.segments,
            mr_mode=raw.mr_mode,
            window=raw.window,
            options=tuple(name for bit, name in enumerate(self._option_names) if raw.options >> bit & 1),
            emulated=raw.emulated == 1,
        )

    def register(self, address: int, nbytes: int, owner: object = None) -> Region:
        """Registers host memory; see ``register_all``."""
        return self.register_all([HostMemory(address, nbytes)], owner=owner)[0]

    def register_all(
        self,
        memories: Sequence[Memory],
        *,
        owner: object = None,
        driver: Driver | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> list[Region]:
        """Registers memory that we write from or that peers write into, with all NICs at the same time.

        Args:
            memories: in the order of the regions.
            owner: kept alive as long as the engine is.
            driver: CUDA's; needed for ``CudaMemory``.
            progress: called some times a second until all is registered. It must not call this engine.

        Raises:
            FabricError: one was refused, or the table of regions is full; nothing of the list is registered.
        """
        with self.lock:
            registration = Registration(
                self.handle,
                self.profile,
                self.library.version,
                nics=len(self.nics),
                gpu=self._gpu,
                driver=driver,
            )
            rows = registration.run(memories, progress)
            self._owners.append(owner)
        return [Region(*row) for row in rows]

    def unregister(self, first: Region) -> None:
        """Closes a region and all that were registered after it.

        Transfers that read from them must have ended, and peers must not write to them any more.

        Raises:
            FabricError: writes are under way.
        """
        error = ffi.new("spf_error *")
        with self.lock:
            check(lib.spf_regions_close(self.handle, first.index, False, error), error)

    def add_peer(self, addresses: Sequence[bytes], regions: Sequence[Region], credits: int = 0) -> Peer:
        """Makes another engine known.

        Args:
            addresses: of its NICs, in the order of the keys of its regions.
            regions: what it registered.
            credits: most writes in flight that it grants us (``Credits``); 0: what our profile says.

        Raises:
            FabricError: an address was not taken, or a region does not fit them. On shm also: the peer's
                ``/dev/shm`` is not ours.
        """
        if self.profile.single_host:
            shared_memory.require_visible(addresses)
        if not 1 <= len(addresses) <= lib.SPF_MAX_NICS:
            raise FabricError(f"the peer offers {len(addresses)} NICs; 1 to {lib.SPF_MAX_NICS} are possible")
        rows = ffi.new(f"uint8_t[{len(addresses) * lib.SPF_ADDRESS_BYTES}]")
        for index, address in enumerate(addresses):
            if len(address) > lib.SPF_ADDRESS_BYTES:
                raise FabricError(f"an address of {len(address)} bytes; at most {lib.SPF_ADDRESS_BYTES}")
            ffi.memmove(rows + index * lib.SPF_ADDRESS_BYTES, address, len(address))
        table = ffi.new("spf_remote_region[]", max(1, len(regions)))
        for row, region in zip(table, regions, strict=False):
            numbers = (region.base, region.nbytes, *region.keys)
            if len(region.keys) != len(addresses) or not all(0 <= number < 1 << 64 for number in numbers):
                raise FabricError(f"the peer's {region} does not fit its {len(addresses)} NICs")
            row.base, row.bytes = region.base, region.nbytes
            row.keys[0 : len(region.keys)] = region.keys
        out, error = ffi.new("spf_peer **"), ffi.new("spf_error *")
        with self.lock:
            code = lib.spf_peer_add(
                self.handle, rows, len(addresses), table, len(regions), credits, out, error
            )
        check(code, error)
        return Peer(self, out[0])

    def admit(self, addresses: Sequence[bytes]) -> list[Peer]:
        """Makes the NICs of an engine known that will write to us (``Profile.inserts_both_ways``).

        Each of our NICs knows each of them afterwards: which one writes to which is the writer's choice.

        Returns:
            Peers to remove when it writes no more; nothing can be written to them.

        Raises:
            FabricError: an address was not taken; then none is known.
        """
        if not 1 <= len(addresses) <= lib.SPF_MAX_NICS:
            raise FabricError(f"the peer offers {len(addresses)} NICs; 1 to {lib.SPF_MAX_NICS} are possible")
        known: list[Peer] = []
        try:
            for address in addresses:
                known.append(self.add_peer([address], []))
        except FabricError:
            for peer in known:
                peer.remove()
            raise
        return known

    @property
    def slot_share(self) -> Share | None:
        """Where a peer on this host finds the completion slots, when they are shared."""
        return self._slot_memory.share if self._slot_memory else None

    def map_peer(self, slots: Share, regions: Sequence[SharedRegion]) -> Peer:
        """Makes an engine on this host known whose memory we map: pages are copied once, by our I/O thread.

        Args:
            slots: the peer's completion slots.
            regions: what a peer otherwise registers, in the same order.

        Raises:
            FabricError: something of it cannot be mapped, a region does not lie within its memory, or our
                own memory is a GPU's, which no core can copy.
        """
        if self._gpu:
            raise FabricError("memory of a GPU cannot be copied into mapped memory of the host")
        for region in regions:
            if region.offset < 0 or region.offset + region.nbytes > region.share.nbytes:
                raise FabricError(
                    f"a region at {region.offset} of {region.nbytes} bytes lies outside its memory"
                )
        mapped = attach_all({slots, *(region.share for region in regions)})
        table = ffi.new("spf_remote_region[]", max(1, len(regions)))
        for row, region in zip(table, regions, strict=False):
            row.base, row.bytes = mapped[region.share].address + region.offset, region.nbytes
        words = ffi.cast("uint64_t *", mapped[slots].address)
        out, error = ffi.new("spf_peer **"), ffi.new("spf_error *")
        count = slots.nbytes // SLOT_BYTES
        with self.lock:
            check(lib.spf_peer_map(self.handle, words, count, table, len(regions), out, error), error)
        return Peer(self, out[0], list(mapped.values()))

    def remove_nic(self, nic: int) -> None:
        """Stops using the NIC at that place of ``nics``: its writes fail, later ones go over the others."""
        if not 0 <= nic < len(self.nics):
            raise FabricError(f"NIC {nic}: there are {len(self.nics)}")
        with self.lock:
            lib.spf_nic_remove(self.handle, nic)

    @property
    def nics_removed(self) -> int:
        """Bit i: NIC i is not used any more, removed or failed. What was on its way to it is lost."""
        return int(lib.spf_nics_removed(self.handle))

    @property
    def standstills(self) -> int:
        """How often we stood still for so long that what came since may not be what was meant."""
        return int(lib.spf_standstills(self.handle)) if self.profile.target_copies else 0

    def slot_generation(self, slot: int) -> int:
        """The generation that owns the slot now."""
        return int(lib.spf_slot_generation(self.handle, self._slot(slot)))

    def slot_units(self, slot: int) -> int:
        """Units counted for the slot's present generation."""
        return int(lib.spf_slot_units(self.handle, self._slot(slot)))

    def advance_slot(self, slot: int) -> int:
        """Ends the slot's generation: its immediates count as late from now on. Returns the next one."""
        return int(lib.spf_slot_advance(self.handle, self._slot(slot)))

    def _slot(self, slot: int) -> int:
        if not 0 <= slot < self.slot_count:
            raise FabricError(f"slot {slot}: there are {self.slot_count}")
        return slot

    def open_transfer(self, peer: Peer, slot: int, generation: int, nic: int = 0) -> Transfer:
        """Starts a transfer to a slot of a peer.

        Args:
            nic: place in ``nics`` of the one that begins. The others follow in turns, so that one transfer
                can use all of them; which begins matters where most transfers are small.

        Raises:
            FabricError: slot or generation do not fit the immediate, or the peer was removed.
        """
        out, error = ffi.new("spf_transfer **"), ffi.new("spf_error *")
        with self.lock:
            check(lib.spf_transfer_open(self.handle, peer.handle, slot, generation, nic, out, error), error)
            return Transfer(out[0], peer, self._transfers)

    def stats(self) -> EngineStats:
        raw = ffi.new("spf_engine_stats *")
        lib.spf_engine_stats_read(self.handle, raw)
        return EngineStats.of(raw)

    def take_trace(self) -> list[TraceEvent]:
        """What the I/O thread did since the last call, oldest first."""
        with self.lock:
            return take_trace(self.handle)

    def close(self, drain: float = 0.0) -> None:
        """Stops the I/O thread and closes the NICs. Unfinished transfers fail.

        Other threads may use transfers and peers meanwhile (they raise or do nothing), not slots and stats.

        Args:
            drain: seconds that unfinished transfers still have to end well.
        """
        with self.lock:
            if self._handle is None:
                return
            for transfer in list(self._transfers):
                transfer.release()
            handle, self._handle = self._handle, None
            lib.spf_engine_close(handle, nanoseconds(drain))
            self._owners.clear()
