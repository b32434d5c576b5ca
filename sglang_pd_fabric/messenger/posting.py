"""How the pages and the metadata row of a room become plans of the engine, the first time and once more.

What is handed over is remembered for as long as the room lives: when a path to decode breaks, the whole room
is posted again under a new completion slot (``fabric/core/paths.h`` says why it must be the whole).
"""

import numpy as np
import numpy.typing as npt

from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.transfer import CopyTable
from sglang_pd_fabric.messenger.decodes import Decodes
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.messages import Pull
from sglang_pd_fabric.messenger.rooms import ROW, Handed, Room
from sglang_pd_fabric.messenger.sharding import Draw, PairTables, duty


class Poster:
    """Posts for one prefill rank. The caller holds its lock around every call.

    Args:
        engine: writes for this rank.
        layout: this rank's layout record.
        decodes: whom it may write to.
    """

    def __init__(self, engine: Engine, layout: LayoutRecord, decodes: Decodes) -> None:
        self._engine = engine
        self._layout = layout
        self._decodes = decodes

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
        if not len(copies) or not len(handed.src_pages):
            return
        transfer = room.transfers.get(incarnation)
        if transfer is None:
            nic = Draw.of(room.number, incarnation, self._layout.pp_rank).nic(len(self._engine.nics))
            transfer = self._engine.open_transfer(decode.peer, pull.slot, pull.generation, nic)
            room.transfers[incarnation] = transfer
        transfer.submit(copies, handed.src_pages, _destination(pull, handed), handed.forward)

    def post_again(self, room: Room, pull: Pull) -> None:
        """Posts everything that was handed over, for a decode rank that took a new slot.

        Raises:
            FabricError: as ``post``.
        """
        room.set_aside(pull.incarnation)
        room.waiting.pop(pull.incarnation, None)
        room.pulls[pull.incarnation] = pull
        for handed in room.handed:
            self.post(room, pull.incarnation, handed)


def _destination(pull: Pull, handed: Handed) -> npt.NDArray[np.uint32]:
    if handed.first == ROW:
        return np.array([pull.aux_row], np.uint32)
    pages = np.frombuffer(pull.pages, "<u4")
    return pages[handed.first : handed.first + len(handed.src_pages)]
