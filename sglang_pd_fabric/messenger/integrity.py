"""Integrity on request: each writer says what it wrote, and decode looks at its own memory.

Counted units say that every piece has come, not that its bytes are the right ones. With
``SGLANG_PD_FABRIC_INTEGRITY=1`` on both sides each prefill rank sends, with a room's metadata row, one XXH3
checksum for each buffer, of the very bytes that its copy tables move for that decode rank. Decode makes
the same tables from the two layout records, reads the destination side of them, and compares, writer by
writer.

Both sides read pages where they lie when nothing moves any more: prefill after the last forward pass of the
room, decode when all units are in. The reading is done by numpy in pieces of ``PIECE_BYTES``, on the thread
that calls, so a request takes longer by what ``docs/reliability.md`` says. Nothing here runs when it is off.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import xxhash
from numpy.lib.stride_tricks import as_strided

from sglang_pd_fabric.fabric.engine import Region
from sglang_pd_fabric.fabric.memory import Memory
from sglang_pd_fabric.fabric.transfer import CopyTable, PageList
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.messages import Digest, Endpoint, Pull
from sglang_pd_fabric.messenger.rooms import ROW, Room
from sglang_pd_fabric.messenger.sharding import Duty, PairTables, duty, pair_tables, writer_units

Offsets = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

PIECE_BYTES = 256 << 10  # read at a time; stays in a core's cache
DIGEST_SECONDS = 10.0  # what a writer's digest may come later than its last unit

# Reads ``nbytes`` at each of the offsets of a memory; the answer has the shape ``[offsets, nbytes]``.
Gather = Callable[[Memory, Offsets, int], Bytes]


def gather_host(memory: Memory, offsets: Offsets, nbytes: int) -> Bytes:
    """``Gather`` for memory of the host.

    Raises:
        IndexError: an offset lies outside of it.
    """
    present = np.ctypeslib.as_array((ctypes.c_uint8 * memory.nbytes).from_address(memory.address))
    runs = as_strided(present, (max(0, memory.nbytes - nbytes + 1), nbytes), (1, 1), writeable=False)
    return runs[offsets]


def _checksums(
    copies: CopyTable, side: str, pages: PageList, memories: Mapping[int, Memory], gather: Gather
) -> Iterator[int]:
    """One for each buffer of the table, of its bytes on one side (``src`` or ``dst``), row by row.

    The rows of one buffer follow each other and carry equally many bytes (``sharding.copies``).
    """
    ends = np.flatnonzero(np.diff(copies["dst_region"])) + 1
    for rows in np.split(copies, ends) if len(copies) else ():
        first, strides = rows[f"{side}_offset"].astype(np.int64), rows[f"{side}_stride"].astype(np.int64)
        offsets = (first[:, None] + strides[:, None] * pages.astype(np.int64)).reshape(-1)
        memory, nbytes = memories[int(rows[0][f"{side}_region"])], int(rows[0]["bytes"])
        step = max(1, PIECE_BYTES // nbytes)
        checksum = xxhash.xxh3_64()
        for start in range(0, len(offsets), step):
            checksum.update(gather(memory, offsets[start : start + step], nbytes).data)
        yield checksum.intdigest()


def _digest(
    tables: PairTables,
    does: Duty,
    side: str,
    pages: PageList,
    row: int,
    memories: Mapping[int, Memory],
    gather: Gather,
) -> tuple[int, ...]:
    """Of all that a writer with this duty writes: its KV buffers, when there are pages, then the row's."""
    kv = tables.kv(does)[: len(tables.pages) * bool(len(pages))]
    return (
        *_checksums(kv, side, pages, memories, gather),
        *_checksums(tables.row(does), side, np.array([row]), memories, gather),
    )


class Witness:
    """Prefill's part: says what this rank has written.

    Args:
        layout: this rank's layout record.
        regions: its regions of the KV buffers and of the metadata buffers.
        gather: reads their memory.
    """

    def __init__(self, layout: LayoutRecord, regions: Iterable[Region], gather: Gather) -> None:
        self._layout = layout
        self._memories = {region.index: region.memory for region in regions if region.memory}
        self._gather = gather

    def digest(
        self, room: Room, pull: Pull, writer: Endpoint, decode: LayoutRecord, tables: PairTables
    ) -> Digest | None:
        """Of the whole room, for one of its decode ranks; None when nothing is written for that one.

        The room's row has been handed over, so all its pages have been too, and all of them are final.

        Args:
            writer: this rank as decode knows it.
        """
        does = duty(self._layout, decode, room.number, pull.incarnation)
        pages = [handed.src_pages for handed in room.handed if handed.first != ROW]
        (row,) = (int(handed.src_pages[0]) for handed in room.handed if handed.first == ROW)
        sums = _digest(
            tables,
            does,
            "src",
            np.concatenate([np.zeros(0, np.uint32), *pages]),
            row,
            self._memories,
            self._gather,
        )
        if not sums:
            return None
        return Digest(writer, pull.incarnation, room.number, pull.slot, pull.generation, sums)


@dataclass
class _Testimony:
    """What decode keeps of one room."""

    pages: PageList
    aux_row: int
    writers: dict[Endpoint, LayoutRecord] = field(default_factory=dict)
    digests: dict[Endpoint, Digest] = field(default_factory=dict)
    since: float | None = None  # all units are in


class Verifier:
    """Decode's part. The caller holds its lock around every call.

    Args:
        layout: this rank's layout record.
        regions: its regions of the KV buffers, then those of the metadata buffers.
        incarnation: of this decode; what writers are drawn with.
        gather: reads their memory.
    """

    def __init__(
        self, layout: LayoutRecord, regions: Sequence[Region], incarnation: int, gather: Gather
    ) -> None:
        self._layout = layout
        self._memories = {place: region.memory for place, region in enumerate(regions) if region.memory}
        self._incarnation = incarnation
        self._gather = gather
        self._rooms: dict[int, _Testimony] = {}
        self._tables: dict[LayoutRecord, PairTables] = {}

    def begin(self, room: int, pages: PageList, aux_row: int) -> None:
        """The room was pulled into these pages and this row."""
        self._rooms[room] = _Testimony(np.array(pages, np.uint32), aux_row)

    def expect(self, room: int, writers: Mapping[Endpoint, LayoutRecord]) -> None:
        """These are all the writers of the room."""
        self._rooms[room].writers = dict(writers)

    def take(self, digest: Digest) -> None:
        """A rank has said what it wrote in the room's present slot. ``verdict`` asks only the writers."""
        self._rooms[digest.room].digests[digest.prefill] = digest

    def begin_again(self, room: int) -> None:
        """The room is written once more, in another slot: every writer speaks once more."""
        self._rooms[room].digests.clear()
        self._rooms[room].since = None

    def end(self, room: int) -> None:
        """Nobody asks for the room any more."""
        self._rooms.pop(room, None)

    def verdict(self, room: int) -> str | None:
        """Whether the bytes are those that were written, once all units of the room are in.

        Returns:
            An empty string when they are, None when a digest is yet to come, or which writer's bytes of
            which buffer are others, or whose digest did not come.
        """
        known = self._rooms[room]
        known.since = known.since or time.monotonic()
        silent = [writer for writer in known.writers if writer not in known.digests]
        silent = [writer for writer in silent if self._writes(room, known, known.writers[writer])]
        if silent and time.monotonic() - known.since > DIGEST_SECONDS:
            return f"integrity: no digest came from prefill {silent[0]}"
        if silent:
            return None
        said = (known.digests[writer] for writer in known.writers if writer in known.digests)
        flaws = (self._flaw(room, known, digest) for digest in said)
        return next(filter(None, flaws), "")

    def _writes(self, room: int, known: _Testimony, prefill: LayoutRecord) -> bool:
        units = writer_units(prefill, self._layout, room, self._incarnation, len(known.pages))
        return units > 0

    def _table(self, prefill: LayoutRecord) -> PairTables:
        """Only the destination side is looked at; the numbers of prefill's regions do not matter."""
        if prefill not in self._tables:
            sources = range(len(prefill.page_bytes)), range(len(prefill.aux_bytes))
            first_aux = len(self._layout.page_bytes)
            self._tables[prefill] = pair_tables(prefill, self._layout, *sources, first_aux)
        return self._tables[prefill]

    def _flaw(self, room: int, known: _Testimony, digest: Digest) -> str:
        """Which buffers do not hold what the writer has written; empty when all do."""
        prefill = known.writers[digest.prefill]
        tables, does = self._table(prefill), duty(prefill, self._layout, room, self._incarnation)
        found = _digest(tables, does, "dst", known.pages, known.aux_row, self._memories, self._gather)
        if found == digest.sums:
            return ""
        rank = f"prefill {digest.prefill} (TP {prefill.tp_rank} of {prefill.tp_size}, PP {prefill.pp_rank})"
        if len(found) != len(digest.sums):
            return f"integrity: {rank} sent {len(digest.sums)} checksums where it writes {len(found)} buffers"
        regions = list(dict.fromkeys((*tables.kv(does)["dst_region"], *tables.row(does)["dst_region"])))
        # Without pages only the row's buffers were compared, which stand last.
        names = [self._name(int(region)) for region in regions[len(regions) - len(found) :]]
        wrong = [name for name, here, there in zip(names, found, digest.sums, strict=True) if here != there]
        listed = ", ".join(wrong[:4]) + f" and {len(wrong) - 4} others" * (len(wrong) > 4)
        return f"integrity: what decode holds is not what {rank} wrote: {listed}"

    def _name(self, region: int) -> str:
        """What a buffer of decode holds, for people."""
        target = len(self._layout.page_bytes) - self._layout.draft_buffers
        if region >= len(self._layout.page_bytes):
            return f"metadata buffer {region - len(self._layout.page_bytes)}"
        if region >= target:
            return f"draft buffer {region - target}"
        tensor, layer = divmod(region, self._layout.held_layers)
        kind = "latent" if self._layout.tensors_per_layer == 1 else "KV"[tensor]
        return f"{kind} of layer {self._layout.first_layer + layer}"
