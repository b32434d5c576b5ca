"""The compatibility check: what differs is named with both values and the flag to change."""

import msgspec
import pytest
from layouts import LAYOUT

from sglang_pd_fabric.messenger.geometry import expected_units
from sglang_pd_fabric.messenger.layout import PROTOCOL, differences, refusal_text


def test_equal_layouts_do_not_differ() -> None:
    assert differences(LAYOUT, LAYOUT) == []


def test_another_version_of_the_same_protocol_is_served() -> None:
    assert differences(LAYOUT, msgspec.structs.replace(LAYOUT, version="0.2.0")) == []


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("page_size", 16, "--page-size"),
        ("dtype", "float16", "--dtype"),
        ("order", "hnd", "SGLANG_USE_HND_KVCACHE"),
        ("model", "fedcba9876543210", "--model-path"),
        ("layers", 61, "--model-path"),
        ("page_bytes", (32768,) * 124, "--kv-cache-dtype"),
        ("aux_bytes", (64,) * 11, "--disaggregation-enable-kv-checksum"),
        ("tp_size", 4, "TP size"),
        ("provider", "shm", "SGLANG_PD_FABRIC_PROVIDER"),
        ("protocol", PROTOCOL + 1, "sglang-pd-fabric"),
    ],
)
def test_each_difference_is_named_with_both_values_and_the_remedy(
    field: str, value: object, remedy: str
) -> None:
    other = msgspec.structs.replace(LAYOUT, **{field: value})
    found = differences(LAYOUT, other)
    assert [(item.field, item.prefill, item.decode) for item in found] == [
        (field, getattr(LAYOUT, field), value)
    ]
    text = refusal_text(found)
    assert field in text
    assert remedy in text


def test_every_field_but_the_version_is_compared() -> None:
    for name in LAYOUT.__struct_fields__:
        present = getattr(LAYOUT, name)
        changed = (*present, 1) if isinstance(present, tuple) else f"{present}?"
        found = differences(LAYOUT, msgspec.structs.replace(LAYOUT, **{name: changed}))
        assert bool(found) == (name != "version"), name


def test_expected_units_count_every_page_of_every_buffer_and_the_metadata_row() -> None:
    assert expected_units(LAYOUT, 64) == 64 * 124 + 10
    assert expected_units(LAYOUT, 0) == 10
