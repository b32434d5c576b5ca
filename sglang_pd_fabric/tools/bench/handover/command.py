"""The command line of the hand-over bench."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sglang_pd_fabric.tools.bench.handover import measure
from sglang_pd_fabric.tools.bench.handover.times import Record, StampError, table
from sglang_pd_fabric.tools.bench.options import count
from sglang_pd_fabric.tools.demo.processes import ServerError
from sglang_pd_fabric.tools.tiny.config import CONTEXT_LENGTH

PURPOSE = "measure the time from prefill's last forward pass to decode's right to schedule, with real servers"
_MODULES = {"mooncake_tcp": "mooncake", "nixl": "nixl"}


def _list_of(kind: Callable[[str], object]) -> Callable[[str], list[object]]:
    def parse(text: str) -> list[object]:
        return list(dict.fromkeys(kind(item) for item in text.split(",") if item))

    return parse


def _backend(text: str) -> str:
    if text not in measure.BACKENDS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(measure.BACKENDS)}")
    return text


def _length(text: str) -> int:
    number = count(text)
    if number >= CONTEXT_LENGTH:
        raise argparse.ArgumentTypeError(f"{text} is too long for the model, which takes {CONTEXT_LENGTH}")
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    add = parser.add_argument
    backends, default = ",".join(measure.BACKENDS), ",".join(measure.BACKENDS[:2])
    add(
        "--backends",
        type=_list_of(_backend),
        default=list(measure.BACKENDS[:2]),
        metavar="LIST",
        help=f"of {backends} (_chunkwise sends after the forward pass, _stock samples on prefill); "
        f"4 GB of memory each (default: {default})",
    )
    add("--requests", type=count, default=50, metavar="N", help="of each length (default: 50)")
    add(
        "--lengths",
        type=_list_of(_length),
        default=[256, 1024, 4096],
        metavar="LIST",
        help="tokens of a prompt (default: 256,1024,4096)",
    )
    add(
        "--block",
        type=count,
        default=10,
        metavar="N",
        help="requests until the next one's turn (default: 10)",
    )
    add("--page-size", type=count, default=16, metavar="TOKENS", help="tokens per KV page (default: 16)")
    add("--chunk", type=count, default=CONTEXT_LENGTH, metavar="TOKENS", help="of a prompt in a forward pass")
    add(
        "--provider",
        choices=("tcp", "shm", "mapped"),
        default="tcp",
        help="what ours runs over (default: tcp)",
    )
    add("--logs", type=Path, metavar="DIR", help="for the servers' logs (default: a new one)")
    add("--json", type=Path, metavar="FILE", help="write the records")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    for backend in options.backends:
        if backend in _MODULES and importlib.util.find_spec(_MODULES[backend]) is None:
            print(
                f"--backends: {backend} is not installed: pip install 'sglang-pd-fabric[peers]'",
                file=sys.stderr,
            )
            return 1
    logs = options.logs or Path(tempfile.mkdtemp(prefix="pd-fabric-handover-"))
    plan = measure.Plan(
        options.backends,
        options.lengths,
        options.requests,
        options.block,
        options.page_size,
        options.chunk,
        options.provider,
    )
    try:
        records = measure.run(plan, logs, lambda line: print(line, file=sys.stderr, flush=True))
    except (ServerError, measure.AnswerError, StampError) as error:
        print(error, file=sys.stderr)
        return 1
    print(table(records))
    if options.json:
        _write(options.json, records)
    return 0


def _write(file: Path, records: Sequence[Record]) -> None:
    file.write_text(json.dumps([record._asdict() for record in records], indent=1) + "\n")
