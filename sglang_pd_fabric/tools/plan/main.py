"""`sglang-pd-fabric plan`: answers, compares with what is published, or finds the constants again."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from sglang_pd_fabric.tools.plan.constants import CONSTANTS
from sglang_pd_fabric.tools.plan.curves import curves
from sglang_pd_fabric.tools.plan.draw import draw_curves, draw_passes
from sglang_pd_fabric.tools.plan.errors import PlanError
from sglang_pd_fabric.tools.plan.fit import fit
from sglang_pd_fabric.tools.plan.make import Answer, make
from sglang_pd_fabric.tools.plan.options import add_arguments, question
from sglang_pd_fabric.tools.plan.published import rows
from sglang_pd_fabric.tools.plan.report import fit_text, plan_text, published_data, published_text

PURPOSE = "how many prefill and decode servers a workload needs, by arithmetic and simulation"
__all__ = ["PURPOSE", "add_arguments", "run"]


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    try:
        data, text = _fitted() if options.fit else _published() if options.published else _planned(options)
    except PlanError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(data, indent=2) if options.json else text)
    return 0


def _published() -> tuple[Any, str]:
    return published_data(rows(), CONSTANTS), published_text(rows(), CONSTANTS)


def _fitted() -> tuple[Any, str]:
    found = fit()
    data = {"in_use": asdict(CONSTANTS), "found": asdict(found), "rows": published_data(rows(), found)}
    return data, f"{fit_text(CONSTANTS, found)}\n\n{published_text(rows(), found)}"


def _planned(options: argparse.Namespace) -> tuple[Any, str]:
    answer = make(question(options))
    _draw(options, answer)
    return answer.data(), plan_text(answer.data())


def _draw(options: argparse.Namespace, answer: Answer) -> None:
    asked, servers = answer.question, answer.servers
    title = f"{asked.fleet.prefill.model.name}, {servers[0]} prefill and {servers[1]} decode servers"
    if options.svg:
        _write("--svg", options.svg, draw_curves(curves(asked, servers), asked.targets, title))
    if options.timeline:
        if not answer.played:
            raise PlanError(
                f"--timeline {options.timeline}: nothing is simulated for {sum(servers)} servers and "
                f"--requests {asked.requests}; give fewer servers (--servers 1:3) and --requests above 0"
            )
        _write("--timeline", options.timeline, draw_passes(answer.played, title))


def _write(flag: str, path: Any, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise PlanError(
            f"{flag} {path}: cannot be written ({error.strerror}); give a file in a folder that exists"
        ) from error
