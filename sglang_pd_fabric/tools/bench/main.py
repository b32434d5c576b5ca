"""`sglang-pd-fabric bench`: our engine, bare libfabric, memcpy and the peers, in one run on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.settings import SettingError, load_settings
from sglang_pd_fabric.tools.bench import chart, deaths, handover, registration, results, rounds
from sglang_pd_fabric.tools.bench.options import add_list, count
from sglang_pd_fabric.tools.bench.overlap import main as overlap
from sglang_pd_fabric.tools.bench.workload import SHAPES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    parser.set_defaults(run=run)
    parts = parser.add_subparsers(metavar="PART")
    registration.add_arguments(
        parts.add_parser("registration", help=registration.PURPOSE, description=registration.PURPOSE)
    )
    handover.add_arguments(parts.add_parser("handover", help=handover.PURPOSE, description=handover.PURPOSE))
    deaths.add_arguments(parts.add_parser("deaths", help=deaths.PURPOSE, description=deaths.PURPOSE))
    overlap.add_arguments(parts.add_parser("overlap", help=overlap.PURPOSE, description=overlap.PURPOSE))
    add = parser.add_argument
    add_list(parser, "--shapes", tuple(SHAPES), list(SHAPES))
    add_list(parser, "--providers", rounds.PROVIDERS, ["shm", "tcp"])
    add_list(parser, "--peers", rounds.PEERS, ["memcpy"], "; nixl and mooncake come with the extra 'peers'")
    add("--rounds", type=count, default=5, metavar="N", help="rounds over all contenders (default: 5)")
    add("--repetitions", type=count, default=3, metavar="N", help="timed transfers in a round (default: 3)")
    add("--seed", type=int, default=1, help="of the page lists (default: 1)")
    add("--raw4", action="store_true", help="also the bare loop with four pages in a write")
    add("--peers-python", default=sys.executable, metavar="PATH", help="interpreter that has the peers")
    add("--json", type=Path, metavar="FILE", help="write the records")
    add("--svg", type=Path, metavar="FILE", help="draw a chart")


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    try:
        library = open_library(load_settings().libfabric or None)
        plan = rounds.Plan(
            [SHAPES[name] for name in options.shapes],
            rounds.contenders(options.providers, options.peers, with_raw4=options.raw4),
            options.rounds,
            options.repetitions,
            options.seed,
            library.path,
            options.peers_python,
        )
        rounds.check_installed(plan)
        version = ".".join(map(str, library.version))
        print(f"libfabric {version} at {library.path}; {plan.rounds} rounds of {plan.repetitions} transfers")
        records, failures = rounds.run(plan, _progress)
    except (FabricError, SettingError, rounds.ChoiceError) as error:
        print(error, file=sys.stderr)
        return 1
    print(results.tables(records))
    for failure in failures:
        print(failure, file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(chart.draw(records))
    return 1 if failures else 0


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the flags and carry out the command."""
    parser = argparse.ArgumentParser(
        prog="sglang-pd-fabric bench",
        description="Measure paged writes between two processes against memcpy, bare libfabric and peers.",
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
