"""Transfers: what one engine writes for one completion slot of one peer, and the table of copies it takes."""

import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_pd_fabric.fabric._core import ffi, lib
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import check

PageList = npt.NDArray[np.integer[Any]]
CopyTable = npt.NDArray[np.void]

# One row of a copy table: page p goes from ``src_offset + src_stride * src_pages[p]`` in region
# ``src_region`` of this engine to the same on the peer's side, once ``after`` steps of its forward pass are
# done. Mirrors spf_copy in core/api.h.
COPY = np.dtype(
    [
        ("src_region", np.uint32),
        ("dst_region", np.uint32),
        ("src_offset", np.uint64),
        ("dst_offset", np.uint64),
        ("src_stride", np.uint64),
        ("dst_stride", np.uint64),
        ("bytes", np.uint64),
        ("after", np.uint32),
    ],
    align=True,
)
assert COPY.itemsize == ffi.sizeof("spf_copy")


class TransferStatus(NamedTuple):
    """Counts of one transfer.

    Attributes:
        busy_ns: time in which something of it was on its way or might be posted, in nanoseconds; what only
            waits for its forward pass does not count.
        error: negative errno of its first failure, or 0.
        retry: it failed on one path to its peer and another is left. Some of its units may have been counted:
            it may only be repeated as a whole, with a new generation of the slot.
    """

    plans_submitted: int
    plans_finished: int
    units_done: int
    bytes_done: int
    writes_done: int
    busy_ns: int
    error: int
    retry: bool

    @property
    def quiet(self) -> bool:
        """Nothing of it is waiting to be posted or on a wire."""
        return self.plans_finished == self.plans_submitted


class Transfer:
    """All that this engine writes for one completion slot of one peer. Made by ``Engine.open_transfer``.

    Any thread may use it; its lock keeps the core's handle alive while a call is inside the core.

    Attributes:
        peer: the ``Peer`` that it was opened for.
    """

    def __init__(self, handle: Any, peer: object, live: set["Transfer"]) -> None:
        self.peer = peer
        self._handle = handle
        self._live = live
        live.add(self)
        self._lock = threading.Lock()
        self._status = ffi.new("spf_transfer_status *")
        self._error = ffi.new("spf_error *")
        self._last: TransferStatus | None = None

    def submit(self, copies: CopyTable, src_pages: PageList, dst_pages: PageList, forward: int = 0) -> None:
        """Hands over a plan: every copy, for every pair of pages.

        Without a forward pass everything may be posted at once. With one, each row waits until the engine's
        progress word shows ``after`` steps of that pass, or a later pass.

        Args:
            copies: rows of ``COPY``, shape ``[copies]``.
            src_pages: page ids of this side, whole numbers below 2**32, shape ``[pages]``.
            dst_pages: page ids of the peer, likewise.
            forward: number of the forward pass, or 0. Rows must be in the order of ``after``.

        Raises:
            FabricError: a page of a copy would lie outside its region or is larger than one write can be,
                the arrays do not fit each other, or the transfer was released; nothing was posted.
        """
        if copies.dtype != COPY:
            raise FabricError(f"a copy table has the columns of COPY, not {copies.dtype}")
        src, dst = _page_ids(src_pages), _page_ids(dst_pages)
        if len(src) != len(dst):
            raise FabricError(f"{len(src)} source pages for {len(dst)} destination pages")
        table = np.ascontiguousarray(copies)
        with self._lock:
            if self._last is not None:
                raise FabricError("the transfer was released")
            code = lib.spf_transfer_submit(
                self._handle,
                ffi.from_buffer("spf_copy[]", table),
                len(table),
                ffi.from_buffer("uint32_t[]", src),
                ffi.from_buffer("uint32_t[]", dst),
                len(src),
                forward,
                self._error,
            )
            check(code, self._error)

    def status(self) -> TransferStatus:
        """How far it is; after ``release`` the last that was known."""
        with self._lock:
            return self._last or self._read()

    def _read(self) -> TransferStatus:
        lib.spf_transfer_status_read(self._handle, self._status)
        raw = self._status
        return TransferStatus(
            raw.plans_submitted,
            raw.plans_finished,
            raw.units_done,
            raw.bytes_done,
            raw.writes_done,
            raw.busy_ns,
            raw.error,
            bool(raw.retry),
        )

    def cancel(self) -> None:
        """Nothing more of it is posted. It is quiet once what was posted has ended."""
        with self._lock:
            if self._last is None:
                lib.spf_transfer_cancel(self._handle)

    def release(self) -> None:
        """Gives the handle back. What was submitted still runs, unless it was cancelled."""
        with self._lock:
            if self._last is None:
                self._last = self._read()
                lib.spf_transfer_release(self._handle)
                self._live.discard(self)  # last: an engine that closes waits for those that are in it


def _page_ids(pages: PageList) -> npt.NDArray[np.uint32]:
    """The pages as the core takes them.

    Raises:
        FabricError: one of them is negative, too large, or no whole number.
    """
    if pages.dtype == np.int32:
        pages = pages.view(np.uint32)  # a negative one becomes a page that lies outside every region
    if pages.dtype == np.uint32 or not len(pages):
        return np.ascontiguousarray(pages, np.uint32)
    if pages.dtype.kind not in "iu" or pages.min() < 0 or pages.max() > np.iinfo(np.uint32).max:
        raise FabricError(f"page ids are whole numbers below 2**32, unlike {pages[:8]}... ({pages.dtype})")
    return np.ascontiguousarray(pages, np.uint32)
