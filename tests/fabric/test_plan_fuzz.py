"""Plans with any numbers at all: taken exactly when every page lies within its region, unwrapped."""

import numpy as np
from conftest import REGION, Pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node import copies

from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.transfer import CopyTable

TOP = 1 << 64
SMALL = st.integers(1, 5000)
NUMBERS = st.one_of(
    st.integers(0, 5000),
    st.integers(REGION - 5000, REGION + 5000),
    st.integers(0, TOP - 1),
    st.sampled_from([1 << 31, 1 << 32, 1 << 62, 1 << 63, TOP - REGION, TOP - 1]),
)
SIZES = st.integers(0, 5000) | st.sampled_from([REGION + 1, 1 << 32, 1 << 63, TOP - 1])
PAGES = st.integers(0, 3) | st.sampled_from([1 << 14, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
REGIONS = st.sampled_from([0, 0, 0, 0, 0, 1, 7, (1 << 32) - 1])


@st.composite
def plans(draw: st.DrawFn) -> tuple[CopyTable, list[int], list[int]]:
    """One to three copies of one to four pages: small ones, and many that lie outside by wrapping around."""
    small = draw(st.booleans())
    numbers, page_ids = (SMALL, st.integers(0, 3)) if small else (NUMBERS, PAGES)
    count = draw(st.integers(1, 4))
    src, dst = (draw(st.lists(page_ids, min_size=count, max_size=count)) for _ in range(2))
    table = copies(draw(st.integers(1, 3)))
    for row in range(len(table)):
        table[row]["bytes"] = draw(SMALL if small else SIZES)
        for side, pages in (("src", src), ("dst", dst)):
            stride = draw(numbers)
            wraps_to_start = (-stride * max(pages) + draw(st.integers(0, 100))) % TOP
            table[row][f"{side}_region"] = 0 if small else draw(REGIONS)
            table[row][f"{side}_stride"] = stride
            table[row][f"{side}_offset"] = draw(numbers if small else numbers | st.just(wraps_to_start))
    return table, src, dst


def lies_within(table: CopyTable, src: list[int], dst: list[int]) -> bool:
    """The rule, in numbers without an end."""
    return all(
        int(row["bytes"]) > 0
        and int(row[f"{side}_region"]) == 0
        and int(row[f"{side}_offset"]) + int(row[f"{side}_stride"]) * page + int(row["bytes"]) <= REGION
        for row in table
        for side, pages in (("src", src), ("dst", dst))
        for page in pages
    )


def test_a_plan_is_taken_exactly_when_all_of_it_lies_within_its_regions(pair: Pair) -> None:
    posted = pair.sender.ask("stats").writes_posted
    taken: set[bool] = set()

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(plans())
    def hold(plan: tuple[CopyTable, list[int], list[int]]) -> None:
        nonlocal posted
        table, src, dst = plan
        pages = np.array(src, np.uint32), np.array(dst, np.uint32)
        try:
            transfer = pair.sender.ask("send", pair.peer, 0, table, *pages)
        except FabricError:
            assert not lies_within(*plan)
            assert pair.sender.ask("stats").writes_posted == posted
            taken.add(False)
            return
        assert lies_within(*plan)
        assert pair.sender.ask("finish", transfer).error == 0
        pair.sender.ask("release", transfer)
        posted = pair.sender.ask("stats").writes_posted
        taken.add(True)

    hold()
    assert taken == {False, True}
