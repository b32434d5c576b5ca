"""Reasons of failures have few kinds: those that are made in one place, as they are made there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.integration.failures import OTHER, kind_of
from sglang_pd_fabric.integration.http.refusals import REFUSED
from sglang_pd_fabric.messenger.compatibility import Difference, refusal_text
from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.slots import NoFreeSlotError, SlotTable
from sglang_pd_fabric.messenger.states import RoomInUseError


class _NoSlots:
    slot_count = 0

    def slot_generation(self, slot: int) -> int:
        raise AssertionError(slot)

    slot_units = advance_slot = slot_generation


def test_reasons_as_they_are_made() -> None:
    with pytest.raises(NoFreeSlotError) as no_slot:
        SlotTable(_NoSlots()).take()
    assert kind_of(str(no_slot.value)) == "no slot"
    assert kind_of(str(RoomInUseError(7, "prefill"))) == "room in use"
    assert kind_of(f"{REFUSED}the prompt is too long; decode has 10 tokens") == "refused"
    assert kind_of(refusal_text([Difference("page_size", 16, 64)])) == "incompatible"
    for loss in Loss:
        assert kind_of(f"lost decode 10.0.0.1:5: {loss.value}") == "peer lost"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("writing to decode failed: Connection reset (a to b)", "transfer"),
        ("no prefill at bootstrap address 10.0.0.1:8998: refused", "not found"),
        ("integrity: rank 0 sent 3 checksums where it writes 4 buffers", "integrity"),
        ("aborted on prefill", "aborted"),
        ("Request 3 timed out after 300s in KVPoll.Bootstrapping", "time-out"),
        ("something new", OTHER),
    ],
)
def test_other_reasons(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind


@given(st.text())
def test_there_are_few_kinds_whatever_is_said(reason: str) -> None:
    assert kind_of(reason) in {
        "refused",
        "room in use",
        "no slot",
        "integrity",
        "peer lost",
        "not found",
        "transfer",
        "time-out",
        "incompatible",
        "aborted",
        OTHER,
    }
