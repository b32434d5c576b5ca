"""Records that no server would send: they are refused in words, or served within what we have ourselves."""

from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUT
from sharded import Model, Server, ranks

from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.compatibility import OVERRIDABLE, judge
from sglang_pd_fabric.messenger.layout import LayoutRecord
from sglang_pd_fabric.messenger.messages import Endpoint, MalformedMessageError, Welcome
from sglang_pd_fabric.messenger.sharding import duty, expected_units, pair_tables
from sglang_pd_fabric.messenger.sharding.copies import row_counts

SOUND = [
    LAYOUT,
    *(
        rank.layout
        for model, server in (
            (Model(kv_heads=4, layers=3, page_size=16), Server(2, (2, 1))),
            (Model(kv_heads=2, layers=2, page_size=16, order="hnd", draft_layers=1), Server(4, (2,))),
            (Model(attention="mla", kv_heads=1, widths=(5,), layers=3), Server(2, (3,))),
        )
        for rank in ranks(model, server)
    ),
]
NUMBERS = st.one_of(st.integers(0, 70), st.sampled_from([1 << 31, 1 << 32, (1 << 63) - 1, (1 << 64) - 1]))
TEXTS = st.sampled_from(["gqa", "mla", "nhd", "hnd", "", "x" * 10_000])


@st.composite
def altered(draw: Any, sound: LayoutRecord) -> LayoutRecord:
    """A record of which any fields have any values of their types."""
    values: dict[str, object] = {}
    for name in sorted(draw(st.sets(st.sampled_from(LAYOUT.__struct_fields__), min_size=1, max_size=4))):
        present = getattr(sound, name)
        if isinstance(present, bool):
            values[name] = draw(st.booleans())
        elif isinstance(present, int):
            values[name] = draw(NUMBERS)
        elif isinstance(present, str):
            values[name] = draw(TEXTS)
        elif name == "allow":
            values[name] = OVERRIDABLE
        else:
            few = st.lists(NUMBERS, max_size=5).map(tuple)
            cut = st.integers(0, len(present) + 2).map(lambda count, twice=present * 2: twice[:count])
            values[name] = draw(few | cut)
    return msgspec.structs.replace(sound, **values)


@st.composite
def pairs(draw: Any) -> tuple[LayoutRecord, LayoutRecord]:
    """What we are, and what somebody sends who says almost the same."""
    here = draw(st.sampled_from(SOUND))
    return here, draw(altered(draw(st.sampled_from([here, *SOUND]))))


@settings(max_examples=500, deadline=None)
@given(pairs(), st.booleans())
def test_any_record_is_refused_in_words_or_its_tables_are_small_and_lie_within_pages(
    pair: tuple[LayoutRecord, LayoutRecord], swapped: bool
) -> None:
    here, sent = pair
    try:
        arrived = messages.decode(messages.encode(Welcome(Endpoint("prefill", 1), 7, 1, sent, (), 0.0)))
    except MalformedMessageError:
        return
    assert isinstance(arrived, Welcome)
    prefill, decode = (arrived.layout, here) if swapped else (here, arrived.layout)
    verdict = judge(prefill, decode)
    assert verdict == judge(prefill, decode)
    if verdict.refusal is not None:
        assert verdict.refusal
        return
    kv, aux = range(len(prefill.page_bytes)), range(len(prefill.aux_bytes))
    tables = pair_tables(prefill, decode, kv, aux, len(decode.page_bytes))
    assert len(tables.pages) <= len(here.page_bytes) * here.page_size
    counts = row_counts(prefill, decode)
    assert len(tables.pages) == counts.target + counts.draft
    src, dst = np.array(prefill.page_bytes, np.uint64), np.array(decode.page_bytes, np.uint64)
    rows = tables.pages
    assert (rows["src_region"] < len(src)).all()
    assert (rows["dst_region"] < len(dst)).all()
    assert (rows["bytes"] > 0).all()
    assert (rows["src_offset"] + rows["bytes"] <= src[rows["src_region"]]).all()
    assert (rows["dst_offset"] + rows["bytes"] <= dst[rows["dst_region"]]).all()
    duty(prefill, decode, 7, 9)
    assert expected_units([prefill], decode, 7, 9, 5) >= 0


def test_records_that_differ_only_in_how_their_pages_are_divided_are_refused_in_words() -> None:
    drafted = next(record for record in SOUND if record.draft_buffers)
    verdict = judge(drafted, msgspec.structs.replace(drafted, draft_buffers=0))
    assert verdict.refusal
