"""A minute of the soak: traffic while each side is killed and frozen once, and nothing wrong or left behind.

It takes about two minutes: three servers start, and two of them once more.
"""

from pathlib import Path

import pytest

from sglang_pd_fabric.tools.soak.plan import short_plan
from sglang_pd_fabric.tools.soak.records import Ending
from sglang_pd_fabric.tools.soak.run import SoakOptions, soak, soak_cluster

from .conftest import Reference

pytestmark = pytest.mark.sglang

SECONDS = 60.0


def test_a_minute_with_kills_and_freezes_of_each_side(tmp_path: Path, reference: Reference) -> None:
    options = SoakOptions(
        soak_cluster("gqa", "tcp", decodes=1),
        logs=tmp_path,
        seconds=SECONDS,
        questions=24,
        faults=short_plan,
    )
    findings = soak(options, lambda line: print(line, flush=True), reference)
    assert not findings.violations
    endings = {outcome.ending for outcome in findings.outcomes}
    assert {Ending.EQUAL, Ending.TAKEN_BACK, Ending.ERROR} == endings
    assert {(event.fault, event.target) for event in findings.events} == {
        (fault, name) for fault in ("kill", "freeze") for name in ("prefill-0", "decode-0")
    }
