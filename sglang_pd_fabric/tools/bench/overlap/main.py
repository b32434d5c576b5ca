"""`sglang-pd-fabric bench overlap`: layer by layer and chunk by chunk, in turn, in one run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.settings import SettingError, load_settings
from sglang_pd_fabric.tools.bench import child
from sglang_pd_fabric.tools.bench.job import Job
from sglang_pd_fabric.tools.bench.options import add_list, count
from sglang_pd_fabric.tools.bench.overlap import chart, figures
from sglang_pd_fabric.tools.bench.overlap.readings import Delays, Reading
from sglang_pd_fabric.tools.bench.rounds import PROVIDERS
from sglang_pd_fabric.tools.bench.workload import SHAPES, Shape

PURPOSE = "measure how much of a transfer hides behind the forward pass that fills its pages"
SAMPLES = 100_000
PASS_RATIO = 1.3
DELAY_SHAPE = Shape("delay", layers=100, pages=1, page_bytes=16_384)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    add = parser.add_argument
    add_list(parser, "--shapes", tuple(SHAPES), list(SHAPES))
    add_list(parser, "--providers", PROVIDERS, list(PROVIDERS))
    add("--rounds", type=count, default=5, metavar="N", help="rounds, in fresh processes (default: 5)")
    add("--repetitions", type=count, default=5, metavar="N", help="of each way in a round (default: 5)")
    add(
        "--pass-ratio",
        type=float,
        default=PASS_RATIO,
        metavar="X",
        help=f"length of the forward pass, in transfers without one (default: {PASS_RATIO})",
    )
    add(
        "--samples",
        type=int,
        default=SAMPLES,
        metavar="N",
        help=f"layers from the progress word to the first post; 0: none (default: {SAMPLES})",
    )
    add("--seed", type=int, default=1, help="of the page lists (default: 1)")
    add("--json", type=Path, metavar="FILE", help="write the figures")
    add("--svg", type=Path, metavar="FILE", help="draw a chart")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    try:
        library = open_library(load_settings().libfabric or None)
        found = measure(options, library.path)
    except (FabricError, SettingError, child.ContenderError) as error:
        print(error, file=sys.stderr)
        return 1
    print(figures.tables(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(chart.draw(found["cases"]))
    return 0


def measure(options: argparse.Namespace, libfabric: str) -> figures.Results:
    """All rounds, case by case, then the delays.

    Raises:
        ContenderError: a measuring process failed; the message has the end of its log.
    """
    readings: dict[tuple[str, str], list[Reading]] = {}
    for number in range(options.rounds):
        for name in options.shapes:
            for transport in options.providers:
                _say(f"round {number + 1} of {options.rounds}: {name} over {transport}")
                job = Job(
                    *("ours", transport, SHAPES[name], options.repetitions, options.seed + number, libfabric),
                    options.pass_ratio,
                )
                answer = [Reading.from_json(values) for values in child.run("overlap", job)]
                readings.setdefault((transport, name), []).extend(answer)
    cases = [figures.case(transport, SHAPES[name], of) for (transport, name), of in readings.items()]
    delays = None
    if options.samples > 0:
        _say(f"{options.samples} delays from the progress word to the first post")
        delays = Delays(
            *child.run("delay", Job("ours", "tcp", DELAY_SHAPE, options.samples, options.seed, ""))
        )
    return figures.results(cases, delays)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
