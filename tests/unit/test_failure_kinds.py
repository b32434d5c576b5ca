"""Reasons of failures have few kinds, and every reason that the sources can make has one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasons import FILES, PACKAGE, SGLANGS, SINKS, UnknownReasonError, reasons, returned

from sglang_pd_fabric.fabric import shared_memory
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.mapped import Share, attach
from sglang_pd_fabric.integration.failures import KINDS, OTHER, kind_of
from sglang_pd_fabric.integration.http.refusals import REFUSED
from sglang_pd_fabric.messenger.compatibility import Difference, refusal_text
from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import Pull
from sglang_pd_fabric.messenger.rooms import disagreement
from sglang_pd_fabric.messenger.sending import NOT_WRITTEN
from sglang_pd_fabric.messenger.slots import NoFreeSlotError, SlotTable
from sglang_pd_fabric.messenger.states import RoomInUseError

# Expressions that pass on what was made elsewhere: fields and messages whose reasons are found where they are
# set, and what ``MAKERS`` return.
PASSED_ON = {
    "known.failure",
    "room.failure",
    "self.failure",
    "failure.reason",
    "message.reason",
    "refused.reason",
    "buried.reason",
    "room.reason",
    "room.next_fails",
    "known.refusal",
    "verdict.refusal",
    "next((p.refusal for p in prefills if p.refusal is not None), None)",
    "reason",
    "self._reason",
    "self.prefill.reason(room)",
    "self._verifier.verdict(room.number)",
    "next(filter(None, flaws), '')",
    "self._questions.unanswered(room)",
    "self._admit(known, welcome.addresses)",
    "disagreement(pull, pages, prompt, first_token)",
    "refusal_text(found)",
}
MAKERS = (
    ("rooms", "disagreement"),
    ("compatibility", "refusal"),
    ("compatibility", "refusal_text"),
    ("integrity", "verdict"),
    ("integrity", "_flaw"),
    ("questions", "unanswered"),
    ("prefills", "_admit"),
)
# What other transfer backends of SGLang's hear from prefill.
SGLANGS_OWN = {"failure_reason", "self.DEFAULT_PREFILL_FAILURE_REASON"}


class _NoSlots:
    slot_count = 0

    def slot_generation(self, slot: int) -> int:
        raise AssertionError(slot)

    slot_units = advance_slot = slot_generation


def pull(pages: int = 3, prompt: int = 5) -> Pull:
    return Pull(1, 7, 0, 1, bytes(4 * pages), 0, 0, 1, prompt)


def without_kind(found: list[str]) -> list[str]:
    assert found
    return [reason for reason in found if kind_of(reason) == OTHER]


def test_every_reason_in_our_sources_has_a_kind() -> None:
    found = [reason for path in FILES for reason in reasons(path, PASSED_ON, SINKS)]
    assert len(found) > 40
    assert not without_kind(found)


@pytest.mark.parametrize(("module", "function"), MAKERS)
def test_every_reason_that_is_made_elsewhere_has_a_kind(module: str, function: str) -> None:
    path = PACKAGE / "messenger" / f"{module}.py"
    assert not without_kind(list(returned(path, function, PASSED_ON)))


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")
def test_every_reason_in_sglangs_sources_has_a_kind() -> None:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "srt" / "disaggregation" / "common" / "conn.py"
    assert not without_kind(list(reasons(path, SGLANGS_OWN, SGLANGS)))


@pytest.mark.parametrize(
    "line",
    [
        'self.fail(room, "something new")',
        'self.fail(room, f"something new: {room}")',
        'why = "something new"; self._rooms.tell(pull, why[:4096])',
        'known.failure = known.failure or "something new"',
        'manager.fail_room(room, reason if reason else "something new")',
        'send(messages.Failure(a, b, c, d, e, "something new"))',
    ],
)
def test_a_new_reason_would_be_found(tmp_path: Path, line: str) -> None:
    path = tmp_path / "new.py"
    path.write_text(f"def change(room, reason):\n    {line}\n")
    assert without_kind(list(reasons(path, PASSED_ON, SINKS)))


def test_a_reason_that_cannot_be_followed_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "new.py"
    path.write_text("def change(room):\n    self.fail(room, explain(room))\n")
    with pytest.raises(UnknownReasonError, match=r"explain\(room\)"):
        list(reasons(path, PASSED_ON, SINKS))


def test_reasons_as_they_are_made() -> None:
    with pytest.raises(NoFreeSlotError) as no_slot:
        SlotTable(_NoSlots()).take()
    assert kind_of(str(no_slot.value)) == "no slot"
    assert kind_of(str(RoomInUseError(7, "prefill"))) == "room in use"
    assert kind_of(f"{REFUSED}the prompt is too long; decode has 10 tokens") == "refused"
    for field in ("page_size", "integrity"):
        assert kind_of(refusal_text([Difference(field, 16, 64)])) == "incompatible"
    for loss in Loss:
        assert kind_of(f"lost decode 10.0.0.1:5: {loss.value}") == "peer lost"


def test_disagreements_about_a_request_are_told_apart() -> None:
    assert disagreement(pull(), 3, 5) is None
    assert kind_of(disagreement(pull(), 3, 5, "decode") or "") == "first token"
    assert kind_of(disagreement(pull(), 4, 5) or "") == "pages"
    assert kind_of(disagreement(pull(), 3, 6) or "") == "room in use"


@pytest.mark.parametrize("way", ["prefill cannot write to decode: ", NOT_WRITTEN])
def test_memory_of_another_container_is_told_apart_from_a_failed_write(tmp_path: Path, way: str) -> None:
    with pytest.raises(FabricError) as unseen:
        shared_memory.require_visible([f"fi_shm://{shared_memory.new_endpoint_name()}".encode()], tmp_path)
    with pytest.raises(FabricError) as elsewhere:
        attach(Share("another host", 1, 1, 1, 1))
    assert {kind_of(f"{way}{error.value}") for error in (unseen, elsewhere)} == {"shared memory"}
    assert kind_of(f"{way}Connection timed out (10.0.0.1 -> 10.0.0.2)") == "transfer"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("no prefill at bootstrap address 10.0.0.1:8998: refused", "not found"),
        ("integrity: rank 0 sent 3 checksums where it writes 4 buffers", "integrity"),
        (
            "writing to decode failed: a path to decode broke, and the pages could not be sent in time",
            "transfer",
        ),
        ("decode has ended the request", "ended"),
        ("something new", OTHER),
    ],
)
def test_other_reasons(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind


@given(st.text())
def test_there_are_few_kinds_whatever_is_said(reason: str) -> None:
    assert kind_of(reason) in KINDS
    assert len(KINDS) < 25
