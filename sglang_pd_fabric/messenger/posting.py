"""How the pages and the metadata row of a room become plans of the engine, the first time and once more.

What is handed over is remembered for as long as the room lives: when a path to decode breaks, the whole room
is posted again under a new completion slot (``fabric/core/paths.h`` says why it must be the whole).
"""

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sglang_pd_fabric.fabric.engine import Engine, Region
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.transfer import CopyTable
from sglang_pd_fabric.messenger.decodes import Decodes
from sglang_pd_fabric.messenger.integrity import Gather, Witness
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.messages import Endpoint, Message, Pull, Spoiled
from sglang_pd_fabric.messenger.rooms import ROW, Handed, Room
from sglang_pd_fabric.messenger.sharding import Draw, PairTables, duty

logger = logging.getLogger(__name__)

# How often a room is sent again because a path broke, and how long that may take to begin.
MAX_REPEATS = 8
AGAIN_SECONDS = 10.0


class Poster:
    """Posts for one prefill rank. The caller holds its lock around every call.

    Args:
        engine: writes for this rank.
        layout: this rank's layout record.
        decodes: whom it may write to.
        send: passes a control message to a decode rank.
        incarnation: random number of this process start.
        regions: of the KV buffers and the metadata buffers.
        gather: reads their memory, where integrity is asked for.
    """

    def __init__(
        self,
        engine: Engine,
        layout: LayoutRecord,
        decodes: Decodes,
        send: Callable[[Endpoint, Message], None],
        incarnation: int,
        regions: Sequence[Region],
        gather: Gather,
    ) -> None:
        self._engine = engine
        self._layout = layout
        self._decodes = decodes
        self._send = send
        self._incarnation = incarnation
        self._witness = Witness(layout, regions, gather) if layout.integrity else None

    def post(self, room: Room, incarnation: int, handed: Handed) -> None:
        """Gives the engine what this rank writes of it for one decode rank; that may be nothing.

        Raises:
            FabricError: the decode is not served, or the engine refused the plan.
        """
        if incarnation in room.waiting:  # posted with everything else when decode has a new slot
            return
        decode, pull = self._decodes[incarnation], room.pulls[incarnation]
        if decode.peer is None or decode.tables is None:
            raise FabricError(decode.refusal or "the decode is not served")
        does = duty(self._layout, decode.layout, room.number, incarnation)
        copies: CopyTable = (PairTables.row if handed.first == ROW else PairTables.kv)(decode.tables, does)
        if len(copies) and len(handed.src_pages):
            transfer = room.transfers.get(incarnation)
            if transfer is None:
                nic = Draw.of(room.number, incarnation, self._layout.pp_rank).nic(len(self._engine.nics))
                transfer = self._engine.open_transfer(decode.peer, pull.slot, pull.generation, nic)
                room.transfers[incarnation] = transfer
            transfer.submit(copies, handed.src_pages, _destination(pull, handed), handed.forward)
        if handed.first == ROW and self._witness is not None:
            digest = self._witness.digest(room, pull, decode.hello.prefill, decode.layout, decode.tables)
            if digest is not None:
                self._send(decode.reply, digest)

    def ask_again(self, room: Room, incarnation: int) -> bool:
        """A path broke and others are left: everything goes once more, as soon as decode has a new slot.

        Returns:
            Whether it was asked for one; not too many times for one room and decode rank.
        """
        if room.repeats[incarnation] == MAX_REPEATS:
            return False
        decode, pull = self._decodes[incarnation], room.pulls[incarnation]
        logger.warning("A path to decode broke: room %d is sent again over the others", room.number)
        room.set_aside(incarnation)
        room.repeats[incarnation] += 1
        room.waiting[incarnation] = time.monotonic()
        self._send(
            decode.reply,
            Spoiled(decode.hello.prefill, self._incarnation, room.number, pull.slot, pull.generation),
        )
        return True

    def post_again(self, room: Room) -> None:
        """Posts everything that was handed over, for each decode rank that took a new slot.

        Not before everything of its old slot has ended: of the old generation no unit counts, but its bytes
        would still be written, perhaps when decode has taken the room for complete and gone on.

        Raises:
            FabricError: as ``post``, it takes too long, or whoever asked may have given it up meanwhile.
        """
        if room.stale and room.waiting:
            raise FabricError("prefill stood still, and nothing old is sent once more")
        if any(time.monotonic() - since > AGAIN_SECONDS for since in room.waiting.values()):
            raise FabricError("a path to decode broke, and the pages could not be sent again in time")
        if not room.renewed or any(not transfer.status().quiet for _, transfer in room.aside):
            return
        while room.renewed:
            incarnation = room.renewed.pop()
            del room.waiting[incarnation]
            for handed in room.handed:
                self.post(room, incarnation, handed)


def _destination(pull: Pull, handed: Handed) -> npt.NDArray[np.uint32]:
    if handed.first == ROW:
        return np.array([pull.aux_row], np.uint32)
    pages = np.frombuffer(pull.pages, "<u4")
    return pages[handed.first : handed.first + len(handed.src_pages)]
