"""The command line of the bench of deaths."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from sglang_pd_fabric.tools.bench.deaths import measure
from sglang_pd_fabric.tools.demo.processes import ServerError

PURPOSE = (
    "kill a prefill and a decode in mid-transfer, with SGLang's default time-outs, and time the survivors"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    add = parser.add_argument
    add(
        "--provider",
        choices=("tcp", "shm", "mapped"),
        default="tcp",
        help="what the pages travel over (default: tcp)",
    )
    add("--logs", type=Path, metavar="DIR", help="for the servers' logs (default: a new one)")
    add("--json", type=Path, metavar="FILE", help="write the record")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    logs = options.logs or Path(tempfile.mkdtemp(prefix="pd-fabric-deaths-"))
    try:
        record = measure.run(options.provider, logs, lambda line: print(line, file=sys.stderr, flush=True))
    except (ServerError, measure.UnexpectedError) as error:
        print(error, file=sys.stderr)
        return 1
    print(measure.table(record))
    if options.json:
        options.json.write_text(json.dumps(record._asdict(), indent=1) + "\n")
    return 0
