"""What goes where: pure functions from layouts to copy tables and to the number of units.

A unit is one page of one buffer (or one metadata row of one buffer). Here: equal parallel sizes, so
buffer i of the prefill rank goes to buffer i of its twin, page by page. ``expected_units`` is what both
sides agree on: prefill sends exactly that many, decode waits for exactly that many.
"""

from collections.abc import Sequence

import numpy as np

from sglang_pd_fabric.fabric.transfer import COPY, CopyTable
from sglang_pd_fabric.messenger.layout import LayoutRecord


def page_copies(
    item_bytes: Sequence[int],
    src_regions: Sequence[int],
    first_dst_region: int,
    layers: Sequence[int] | None = None,
) -> CopyTable:
    """One copy for each buffer, whole pages to whole pages, in the order of the layers.

    Args:
        item_bytes: bytes of one page (or row) of each buffer.
        src_regions: this engine's region of each buffer.
        first_dst_region: the peer's region of the first buffer; the others follow it.
        layers: the layer that fills each buffer, from 0 on; None where the buffers wait for no layer.
    """
    table = np.zeros(len(item_bytes), COPY)
    table["src_region"] = src_regions
    table["dst_region"] = np.arange(first_dst_region, first_dst_region + len(item_bytes))
    for field in ("src_stride", "dst_stride", "bytes"):
        table[field] = item_bytes
    if layers is None:
        return table
    table["after"] = np.add(layers, 1)
    return table[np.argsort(table["after"], kind="stable")]


def buffer_layers(prefill: LayoutRecord) -> list[int]:
    """The layer whose end makes each KV buffer final, for this forward pass.

    The pools list all K, then all V (for MLA the latents), then the buffers of a draft model. Those are
    filled after the model itself has run: their layer comes after all others, as does that of every buffer
    of a pool that does not have one (or two) for each layer.
    """
    kinds = 1 if prefill.attention == "mla" else 2
    own = kinds * prefill.layers
    buffers = len(prefill.page_bytes)
    if buffers < own:
        return [prefill.layers] * buffers
    return [*range(prefill.layers)] * kinds + [prefill.layers] * (buffers - own)


def expected_units(prefill: LayoutRecord, pages: int) -> int:
    """Units that one prefill rank sends to its twin for a request of so many pages.

    Every KV buffer's every page, and one metadata row of every metadata buffer.
    """
    return pages * len(prefill.page_bytes) + len(prefill.aux_bytes)
