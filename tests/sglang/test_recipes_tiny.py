"""The launch files' commands, started: every flag beside every other one, at the size of this machine.

`tools/recipes/settings.py` is the table of what is replaced, and so of what is not run here; all other flags
have the recipe's values. The router is the recipe's too: SGLang's gateway in Rust, not the small load
balancer. One prefill and one decode, as memory is short; the recipe with the smallest prefill has its three.

Some 100 s for each recipe on two cores, 170 s with three decodes, and an ordinary server for each model.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_pd_fabric.tools.demo.client import ask_all
from sglang_pd_fabric.tools.demo.compare import differences
from sglang_pd_fabric.tools.demo.metrics import read_transfers
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import make_questions
from sglang_pd_fabric.tools.recipes.local import TinyCluster
from sglang_pd_fabric.tools.recipes.recipe import Recipe, load_all

from .conftest import Reference

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]

QUESTIONS = make_questions(20)
DECODES = {"qwen3-235b": 3}


@pytest.mark.parametrize("recipe", [pytest.param(each, id=f"{each.tiny}-{each.name}") for each in load_all()])
def test_a_recipe_at_tiny_size_answers_what_an_ordinary_server_answers(
    recipe: Recipe, pool: Pool, reference: Reference, tmp_path: Path
) -> None:
    expected = reference(recipe.tiny, QUESTIONS)
    pool.stop()  # their memory is needed
    decodes = DECODES.get(recipe.name, 1)
    with TinyCluster(recipe, tmp_path, lambda line: print(line, flush=True), decodes) as cluster:
        before = read_transfers([spec.url for spec in cluster.form.prefills])
        for _round in range(2):  # the second finds prefixes in prefill's cache
            assert not differences(QUESTIONS, expected, ask_all(cluster.url, QUESTIONS, at_once=8))
        transfers = read_transfers([spec.url for spec in cluster.form.prefills]) - before
        assert transfers.requests >= 2 * len(QUESTIONS)
