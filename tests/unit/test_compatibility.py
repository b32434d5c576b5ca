"""The compatibility check: what stands in the way is named with values and flag, the rest is served."""

import re
from dataclasses import fields
from pathlib import Path

import msgspec
import pytest
from layouts import LAYOUT

from sglang_pd_fabric.messenger.compatibility import OVERRIDABLE, OVERRIDE, differences, judge, refusal
from sglang_pd_fabric.messenger.layout import PROTOCOL, LayoutRecord
from sglang_pd_fabric.settings import Settings, variable

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
        ("weights", "another-step", "--revision"),
        ("compute_dtype", "float16", "--dtype"),
        ("draft_model", "another", "--speculative"),
        ("sglang", "0.5.24", "sglang"),
        ("integrity", True, "SGLANG_PD_FABRIC_INTEGRITY"),
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


# What may differ: neither says how bytes lie.
FREE = {"version", "allow"}


def another(name: str) -> object:
    """Another value of a field, which no pair with ``LAYOUT`` can have."""
    present = getattr(LAYOUT, name)
    if isinstance(present, tuple):
        return (*present, 1)
    if isinstance(present, bool):
        return not present
    if isinstance(present, int):
        return present * 5 + 1  # TP 8 and 41, neither a multiple of the other
    return f"{present}?"


@pytest.mark.parametrize("name", LAYOUT.__struct_fields__)
def test_another_value_of_any_field_but_those_for_people_is_refused_whoever_has_it(name: str) -> None:
    other = change(**{name: another(name)})
    assert (refusal(LAYOUT, other) is None) == (name in FREE)
    # Stages of prefill are served by a decode that has none: there the first of them holds all layers.
    assert (refusal(other, LAYOUT) is None) == (name in {*FREE, "pp_size"})


@pytest.mark.parametrize("name", LAYOUT.__struct_fields__)
def test_only_names_can_be_overridden_and_only_by_both_sides(name: str) -> None:
    other = {name: another(name)}
    allow = tuple(LAYOUT.__struct_fields__)  # more than the setting takes
    here, there = change(allow=allow), change(allow=allow, **{k: v for k, v in other.items() if k != "allow"})
    if name in OVERRIDABLE:
        verdict = judge(here, there)
        assert verdict.refusal is None
        assert f"{name}: prefill has {getattr(here, name)!r}, decode has {getattr(there, name)!r}" in (
            verdict.waived
        )
        for pair in ((LAYOUT, there), (here, change(**other))):
            text = refusal(*pair)
            assert text is not None
            assert f"SGLANG_PD_FABRIC_ALLOW_MISMATCH={name}" in text
    else:
        assert (refusal(here, there) is None) == (name in FREE)
        assert judge(here, there).waived == ""


def test_the_setting_takes_what_can_be_overridden_and_nothing_else() -> None:
    (entry,) = (entry for entry in fields(Settings) if entry.name == "allow_mismatch")
    assert entry.metadata["parts"] == OVERRIDABLE
    assert variable(entry.name) == OVERRIDE


@pytest.mark.parametrize("name", ["page_bytes", "aux_bytes"])
def test_one_buffer_that_differs_is_named_with_its_place(name: str) -> None:
    sizes = getattr(LAYOUT, name)
    text = refusal(LAYOUT, change(**{name: (*sizes[:5], sizes[5] * 2, *sizes[6:])}))
    assert text is not None
    assert f"{name}: prefill has {sizes[5]}, decode has {sizes[5] * 2} in buffer 5" in text
    text = refusal(LAYOUT, change(**{name: (*sizes, sizes[0], sizes[0])}))
    assert f"prefill has {len(sizes)} buffers, the first {sizes[0]}, decode has {len(sizes) + 2}" in str(text)


def test_one_buffer_that_differs_is_named_where_ranks_differ_too() -> None:
    pages = (32768,) * 124  # of two heads each
    assert refusal(LAYOUT, change(tp_size=4, page_bytes=pages)) is None
    text = refusal(LAYOUT, change(tp_size=4, page_bytes=(*pages[:7], 16384, *pages[8:])))
    assert "page_bytes: prefill has 16384.0, decode has 8192.0 in buffer 7" in str(text)


def test_several_differences_are_all_named_and_one_that_is_allowed_hides_no_other() -> None:
    allow = {"allow": ("model",)}
    here, there = change(**allow), change(**allow, model="another", weights="others", page_size=16)
    assert {item.field for item in differences(here, there)} == {"weights", "page_size"}
    assert "model: " not in (refusal(here, there) or "")


def test_fields_of_a_later_version_are_passed_over_and_those_that_are_missing_have_defaults() -> None:
    said = msgspec.to_builtins(LAYOUT)
    later = msgspec.msgpack.encode({**said, "colour": "green", "expert_parallel": [1, {"deep": None}]})
    assert msgspec.msgpack.decode(later, type=LayoutRecord) == LAYOUT
    for name in LAYOUT.__struct_fields__[-len(LAYOUT.__struct_defaults__) :]:
        earlier = msgspec.msgpack.encode({key: value for key, value in said.items() if key != name})
        assert msgspec.msgpack.decode(earlier, type=LayoutRecord) == LAYOUT


def test_every_field_stands_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", page, re.MULTILINE)
    assert [name for name, _ in rows] == list(LAYOUT.__struct_fields__)
    assert {name for name, override in rows if override == "yes"} == set(OVERRIDABLE)


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
