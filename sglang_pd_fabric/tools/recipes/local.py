"""Runs a recipe at tiny size on this machine, and judges its answers by an ordinary server's."""

import tempfile
from dataclasses import replace
from pathlib import Path

from sglang_pd_fabric.tools.demo.client import ask_all
from sglang_pd_fabric.tools.demo.cluster import Group, Progress, checkpoint
from sglang_pd_fabric.tools.demo.compare import differences
from sglang_pd_fabric.tools.demo.main import reference_answers
from sglang_pd_fabric.tools.demo.prompts import make_questions
from sglang_pd_fabric.tools.demo.servers import Ports, ServerOptions, free_ports
from sglang_pd_fabric.tools.recipes.recipe import Recipe, Side
from sglang_pd_fabric.tools.recipes.settings import CHUNK
from sglang_pd_fabric.tools.recipes.tiny import Change, tiny

QUESTIONS = 20
AT_ONCE = 8


class TinyCluster(Group):
    """Servers and router of a recipe's tiny form, with one prefill.

    Args:
        recipe: which. Of its networks the first, as their tiny forms are one.
        logs: folder for the logs.
        progress: takes a line when something starts or is ready.
        decodes: servers of decode.
    """

    def __init__(self, recipe: Recipe, logs: Path, progress: Progress, decodes: int = 1) -> None:
        super().__init__(logs, progress)
        self.start_seconds *= 1 + decodes  # on few cores each waits for the others
        http, bootstrap, router, *others = free_ports(3 + decodes)
        ports: dict[Side, list[Ports]] = {
            "prefill": [Ports(http, bootstrap)],
            "decode": [Ports(port) for port in others],
        }
        self.form = tiny(recipe, recipe.networks[0], checkpoint(recipe.tiny), ports, router)
        # It answers /health long before it knows a server that is well.
        gateway = replace(self.form.router, health="/readiness")
        self._start([*self.form.prefills, *self.form.decodes, gateway])
        self.url = gateway.url


def table(changes: tuple[Change, ...]) -> str:
    """What a tiny form has in another value's place, a line each."""
    rows = [(c.where, c.name, c.full or "(unset)", c.tiny, c.why) for c in changes]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    )


def judge(recipe: Recipe, decodes: int, logs: Path | None, say: Progress) -> int:
    """Starts the tiny form, asks it and an ordinary server the same, and stops both.

    Returns:
        0 if all answers are equal token for token, otherwise 1.

    Raises:
        ServerError: a server did not start.
    """
    folder = logs or Path(tempfile.mkdtemp(prefix="pd-fabric-logs-"))
    questions = make_questions(QUESTIONS)
    options = ServerOptions(model=recipe.tiny, chunked_prefill_size=CHUNK)
    expected = reference_answers(options, questions, folder, AT_ONCE)
    with TinyCluster(recipe, folder, say, decodes) as cluster:
        answers = ask_all(cluster.url, questions, AT_ONCE)
        say(f"not as in the recipe:\n{table(cluster.form.changes)}")
    found = differences(questions, expected, answers)
    for difference in found:
        say(f"DIFFERENT {difference}")
    say(f"{len(questions) - len(found)} of {len(questions)} answers are equal token for token")
    return int(bool(found))
