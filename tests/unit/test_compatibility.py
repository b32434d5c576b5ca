"""The compatibility check: what stands in the way is named with values and flag, the rest is served."""

import msgspec
import pytest
from layouts import LAYOUT

from sglang_pd_fabric.messenger.compatibility import differences, refusal
from sglang_pd_fabric.messenger.layout import PROTOCOL, LayoutRecord

DRAFTED: dict[str, object] = {"draft_buffers": 2, "page_bytes": (16384,) * 126}


def change(record: LayoutRecord = LAYOUT, **fields: object) -> LayoutRecord:
    return msgspec.structs.replace(record, **fields)


def test_equal_layouts_fit() -> None:
    assert differences(LAYOUT, LAYOUT) == []
    assert refusal(LAYOUT, LAYOUT) is None


def test_another_version_of_the_same_protocol_is_served() -> None:
    assert refusal(LAYOUT, change(version="0.2.0")) is None


@pytest.mark.parametrize(
    ("field", "value", "remedy"),
    [
        ("page_size", 16, "--page-size"),
        ("dtype", "float16", "--dtype"),
        ("model", "fedcba9876543210", "--model-path"),
        ("layers", 61, "--model-path"),
        ("page_bytes", (32768,) * 124, "--kv-cache-dtype"),
        ("page_bytes", (16384,) * 122, "--kv-cache-dtype"),
        ("aux_bytes", (64,) * 11, "--disaggregation-enable-kv-checksum"),
        ("order", "hnd", "SGLANG_USE_HND_KVCACHE"),
        ("tp_size", 12, "multiple"),
        ("pp_size", 2, "--pp-size"),
        ("draft_kv_heads", 4, "--speculative"),
        ("provider", "shm", "SGLANG_PD_FABRIC_PROVIDER"),
        ("protocol", PROTOCOL + 1, "sglang-pd-fabric"),
    ],
)
def test_each_difference_is_named_with_both_values_and_the_remedy(
    field: str, value: object, remedy: str
) -> None:
    other = change(**{field: value})
    assert [(item.field, item.prefill, item.decode) for item in differences(LAYOUT, other)] == [
        (field, getattr(LAYOUT, field), value)
    ]
    text = refusal(LAYOUT, other)
    assert text is not None
    assert field in text
    assert remedy in text


def test_another_value_of_any_field_but_the_version_is_refused() -> None:
    for name in LAYOUT.__struct_fields__:
        present = getattr(LAYOUT, name)
        changed = (*present, 1) if isinstance(present, tuple) else f"{present}?"
        if isinstance(present, int):
            changed = present * 5 + 1  # TP 8 and 41, neither a multiple of the other
        assert (refusal(LAYOUT, change(**{name: changed})) is None) == (name == "version"), name


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({"tp_size": 4, "page_bytes": (32768,) * 124}, {}),
        ({}, {"tp_size": 1, "page_bytes": (131072,) * 124}),
        ({"tp_size": 16}, {}),  # two ranks hold each head
        ({"pp_size": 2, "page_bytes": (16384,) * 62}, {}),
        ({"pp_size": 2, "pp_rank": 1, "first_layer": 31, "page_bytes": (16384,) * 62}, {}),
        (
            {"pp_size": 2, "pp_rank": 1, "first_layer": 31, "page_bytes": (16384,) * 62},
            {"pp_size": 2, "pp_rank": 1, "first_layer": 31, "page_bytes": (16384,) * 62},
        ),
        (
            {"draft_buffers": 2, "page_bytes": (16384,) * 126},
            {"draft_buffers": 2, "page_bytes": (16384,) * 126},
        ),
    ],
)
def test_parallel_sizes_that_can_be_served_do_not_differ(
    prefill: dict[str, object], decode: dict[str, object]
) -> None:
    assert refusal(change(**prefill), change(**decode)) is None


def test_a_draft_on_one_side_only_is_refused() -> None:
    drafted = change(**DRAFTED)
    for pair in ((LAYOUT, drafted), (drafted, LAYOUT)):
        assert [item.field for item in differences(*pair)] == ["draft_buffers"]


def test_stages_cut_at_different_layers_are_refused() -> None:
    stage = {"pp_size": 2, "pp_rank": 1}
    prefill = change(**stage, first_layer=30, page_bytes=(16384,) * 64)
    decode = change(**stage, first_layer=31, page_bytes=(16384,) * 62)
    assert [(item.field, item.prefill, item.decode) for item in differences(prefill, decode)] == [
        ("layer_range", (30, 62), (31, 62))
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tp_rank": 8}, "no rank TP 8 of 8"),
        ({"kv_heads": 12}, "12 KV heads cannot be spread over 8 ranks"),
        ({"page_size": 100}, "do not divide into tokens and heads"),
        ({"draft_buffers": 123}, "1 buffers of 2 for each layer"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(fields: dict[str, object], words: str) -> None:
    record = change(**fields)
    text = refusal(record, record)
    assert text is not None
    assert words in text


def test_ranks_that_are_no_pair_are_refused() -> None:
    text = refusal(LAYOUT, change(tp_rank=1))
    assert text is not None
    assert "TP 0 of 8" in text
    assert "TP 1 of 8" in text
