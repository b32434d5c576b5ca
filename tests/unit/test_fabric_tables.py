"""The small tables of the fabric: the immediate's widths, the profiles, the copy table, page ids."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_pd_fabric.fabric._core import ffi, lib

from sglang_pd_fabric.fabric import immediate
from sglang_pd_fabric.fabric.records import EngineStats
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.profiles import PROFILES, SERVED_MR_MODE, Profile
from sglang_pd_fabric.fabric.transfer import COPY, TransferStatus, _page_ids


def test_the_immediate_has_exactly_32_bits() -> None:
    assert immediate.SLOT_BITS + immediate.GENERATION_BITS + immediate.UNIT_BITS == 32


def test_4096_requests_and_their_successors_fit_the_immediate() -> None:
    assert immediate.MAX_SLOTS >= 4096
    assert immediate.MAX_GENERATION >= 100, "generations must not come round while a write may be under way"
    assert immediate.MAX_UNITS >= 1024, "one write carries many small pages"


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_a_profile_is_consistent(profile: Profile) -> None:
    assert PROFILES[profile.name] is profile
    assert 1 <= profile.segments <= 8
    assert 1 <= profile.peer_window < profile.window, "a frozen peer must not take all of a NIC"
    assert profile.write_bytes >= 1 << 16
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.window = 1  # type: ignore[misc]


def test_we_offer_all_addressing_modes_that_the_core_serves() -> None:
    for bit in (lib.FI_MR_LOCAL, lib.FI_MR_VIRT_ADDR, lib.FI_MR_ALLOCATED, lib.FI_MR_PROV_KEY):
        assert SERVED_MR_MODE & bit


def test_the_copy_table_is_laid_out_as_the_core_reads_it() -> None:
    fields = dict(ffi.typeof("spf_copy").fields)
    assert list(fields) == list(COPY.names or ())
    for name, field in fields.items():
        dtype, offset = (COPY.fields or {})[name][:2]
        assert (offset, dtype.itemsize) == (field.offset, ffi.sizeof(field.type))


@pytest.mark.parametrize(
    ("record", "struct"),
    [(EngineStats, "spf_engine_stats"), (TransferStatus, "spf_transfer_status")],
)
def test_python_reads_every_counter_of_the_core(record: type, struct: str) -> None:
    fields = ffi.typeof(struct).fields
    assert [name for name, _ in fields] == list(record._fields)  # type: ignore[attr-defined]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**32 - 1), max_size=8))
def test_page_ids_keep_their_value_or_are_refused(values: list[int]) -> None:
    pages = np.array(values, np.int64)
    if all(0 <= value < 2**32 for value in values):
        assert _page_ids(pages).tolist() == values
        assert _page_ids(pages[::-1]).tolist() == values[::-1]
    else:
        with pytest.raises(FabricError):
            _page_ids(pages)


@given(st.sampled_from(["u1", "u2", "u4", "i1", "i2", "i4", "u8"]), st.integers(0, 127))
def test_page_ids_may_come_in_any_integer_type(dtype: str, value: int) -> None:
    pages = _page_ids(np.full(3, value, dtype))
    assert pages.dtype == np.uint32
    assert pages.tolist() == [value] * 3
