"""A minute of the soak: traffic while each side is killed and frozen once, and nothing wrong or left behind.

It takes about two minutes: three servers start, and two of them once more.
"""

import pytest

from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.soak.plan import short_plan
from sglang_pd_fabric.tools.soak.questions import soak_questions
from sglang_pd_fabric.tools.soak.records import Ending
from sglang_pd_fabric.tools.soak.run import Soak, SoakOptions, soak_cluster

from .conftest import Reference

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]

SECONDS = 60.0


def test_a_minute_with_kills_and_freezes_of_each_side(pool: Pool, reference: Reference) -> None:
    options = soak_cluster("gqa", "tcp", decodes=1)
    questions = soak_questions(options, 16, seed=0)
    right = reference("gqa", questions)
    soak = Soak(
        SoakOptions(SECONDS, at_once=4, faults=short_plan), pool.cluster(options), questions, right, print
    )
    findings = soak.run()
    assert not findings.violations
    assert {Ending.EQUAL, Ending.TAKEN_BACK, Ending.ERROR} == {each.ending for each in findings.outcomes}
    assert {(event.fault, event.target) for event in findings.events} == {
        (fault, name) for fault in ("kill", "freeze") for name in ("prefill-0", "decode-0")
    }
