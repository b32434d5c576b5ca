"""The published figures, within the errors that we state for them."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from sglang_pd_fabric.tools.plan.constants import CONSTANTS, FITTED
from sglang_pd_fabric.tools.plan.fit import fit
from sglang_pd_fabric.tools.plan.published import R1_OUTPUT, R1_PROMPT, Row, r1, rows
from sglang_pd_fabric.tools.plan.report import published_text
from sglang_pd_fabric.tools.plan.simulate.run import Arrangement, play

from .fleets import fleet, workload

MIXED = next(row for row in rows() if row.what == "R1 mixed")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.what)
def test_a_published_figure_is_met_within_its_stated_error(row: Row) -> None:
    assert abs(row.error()) <= row.within


def test_a_lower_bound_that_is_kept_is_no_error() -> None:
    row = Row("", "", "", 90.0, 0.1, lambda _: 100.0, least=True)
    assert row.error() == 0
    assert Row("", "", "", 90.0, 0.1, lambda _: 81.0, least=True).error() == pytest.approx(-0.1)


def test_the_constants_in_use_are_those_that_the_fit_finds() -> None:
    found, used = asdict(fit()), asdict(CONSTANTS)
    assert {name: found[name] for name in FITTED} == pytest.approx(
        {name: used[name] for name in FITTED}, rel=0.02
    )
    assert {name: found[name] for name in found if name not in FITTED} == {
        name: used[name] for name in used if name not in FITTED
    }


def test_r1_mixed_is_played_as_it_is_computed() -> None:
    load = workload(1.0, str(R1_PROMPT), str(R1_OUTPUT))
    run = play(fleet(r1(), chunk=16_384), Arrangement.COLOCATED, load.trace(400, 3), (0, 1), 3)
    assert 1 / float(np.mean(run.outcome().tpot_s)) == pytest.approx(MIXED.predict(CONSTANTS), rel=0.1)


def test_the_document_has_the_table_as_it_is_printed() -> None:
    document = Path(__file__).parents[3] / "docs" / "planner.md"
    assert published_text(rows(), CONSTANTS) in document.read_text()


def test_the_document_has_the_constants_in_use() -> None:
    document = (Path(__file__).parents[3] / "docs" / "planner.md").read_text()
    assert all(f"| `{name}` |" in document for name in asdict(CONSTANTS))
