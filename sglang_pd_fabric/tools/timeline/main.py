"""`sglang-pd-fabric timeline`: asks real servers one long question and draws how its pages travelled."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sglang_pd_fabric.settings import variable
from sglang_pd_fabric.tools.timeline.draw import draw
from sglang_pd_fabric.tools.timeline.events import Timeline, UnfinishedError, last_request, read_folder

PURPOSE = "draw the timeline of one real chunked request: compute above, transfer below"
TRACED_SECONDS = 10.0  # for the servers to write down what has happened
LOOK_SECONDS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    add = parser.add_argument
    add(
        "--out",
        type=Path,
        default=Path("timeline.svg"),
        metavar="FILE",
        help="the SVG (default: %(default)s)",
    )
    add("--model", choices=("gqa", "mla"), default="gqa", help="tiny model (default: %(default)s)")
    add("--provider", choices=("tcp", "shm", "mapped"), default="tcp", help="(default: %(default)s)")
    add("--tokens", type=int, default=500, metavar="N", help="of the prompt (default: %(default)s)")
    add("--chunk", type=int, default=128, metavar="N", help="tokens of a forward pass (default: %(default)s)")
    add(
        "--traces",
        type=Path,
        metavar="FOLDER",
        help="draw the last request of these traces; no server starts",
    )
    add("--logs", type=Path, help="directory for the servers' logs (default: a temporary one)")


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    try:
        timeline = last_request(*read_folder(options.traces)) if options.traces else _ask(options)
    except UnfinishedError as error:
        print(error, file=sys.stderr)
        return 1
    options.out.write_text(draw(timeline, _title(options)))
    print(f"{options.out}: {describe(timeline)}")
    return 0


def describe(timeline: Timeline) -> str:
    """One line: how much was sent in how many writes, and what of it had ended with the last forward pass."""
    ended = timeline.passes[-1].end_ns
    total = sum(write.nbytes for write in timeline.writes)
    hidden = sum(write.nbytes for write in timeline.writes if write.done_ns <= ended)
    return (
        f"{len(timeline.passes)} forward passes, {total} bytes in {len(timeline.writes)} writes, "
        f"{hidden / total:.1%} of them before the last pass ended; decode may go on "
        f"{(timeline.complete_ns - ended) / 1e6:.2f} ms after it"
    )


def _title(options: argparse.Namespace) -> str:
    if options.traces:
        return "One request, layer by layer"
    return (
        f"One request of {options.tokens} tokens in chunks of {options.chunk}, tiny {options.model} model "
        f"over {options.provider}"
    )


def _ask(options: argparse.Namespace) -> Timeline:
    """Starts a cluster that traces, lets it warm up with one question, and asks another.

    Raises:
        UnfinishedError: a server does not start, an answer failed, or its trace is not complete.
    """
    from sglang_pd_fabric.tools.demo.client import ask_all
    from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions
    from sglang_pd_fabric.tools.demo.processes import ServerError
    from sglang_pd_fabric.tools.demo.prompts import Question, text

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pd-fabric-timeline-")))
        traces = folder / "traces"
        cluster_options = ClusterOptions(
            model=options.model,
            provider=options.provider,
            chunked_prefill_size=options.chunk,
            env={variable("trace"): str(traces)},
        )
        try:
            cluster = stack.enter_context(Cluster(cluster_options, options.logs or folder / "logs", print))
        except ServerError as error:
            raise UnfinishedError(str(error)) from error
        for seed in (1, 2):
            (answer,) = ask_all(cluster.url, [Question("timeline", text(options.tokens, seed))])
            if answer.error:
                raise UnfinishedError(answer.error)
            timeline = _traced(traces, requests=seed)
    return timeline


def _traced(folder: Path, requests: int) -> Timeline:
    """The last of so many requests, once the servers have written all of it down."""
    limit = time.monotonic() + TRACED_SECONDS
    while True:
        try:
            prefill, decode = read_folder(folder)
            if _completed(decode) < requests:
                raise UnfinishedError(f"request {requests} is not complete")
            return last_request(prefill, decode)
        except UnfinishedError:
            if time.monotonic() > limit:
                raise
        time.sleep(LOOK_SECONDS)


def _completed(decode: Sequence[dict[str, object]]) -> int:
    return sum(event["kind"] == "complete" for event in decode)
