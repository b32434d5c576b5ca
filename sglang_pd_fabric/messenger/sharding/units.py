"""How many units a writer sends and a decode rank waits for. Both sides call the same functions."""

from collections.abc import Iterable

from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.sharding.copies import row_counts
from sglang_pd_fabric.messenger.sharding.pairing import duty


def writer_units(prefill: LayoutRecord, decode: LayoutRecord, room: int, salt: int, pages: int) -> int:
    """Units that one prefill rank sends to one decode rank that it meets.

    Args:
        room: number of the request.
        salt: what the two draw with, see ``Draw.of``.
        pages: pages that decode asked for; those of its own prefix are not among them. Zero is
            usual: then only the metadata row goes.
    """
    does = duty(prefill, decode, room, salt)
    rows = row_counts(prefill, decode)
    return pages * (rows.target * does.target + rows.draft * does.draft) + rows.aux * does.aux


def expected_units(
    prefills: Iterable[LayoutRecord], decode: LayoutRecord, room: int, salt: int, pages: int
) -> int:
    """Units that a decode rank waits for.

    Args:
        prefills: the records of all prefill ranks that it meets, of all stages.
    """
    return sum(writer_units(prefill, decode, room, salt, pages) for prefill in prefills)
