"""`launch/local`: a prefill/decode cluster on this machine, judged by an ordinary server."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from sglang_pd_fabric.tools.demo.client import Answer, ask_all
from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions, Ordinary
from sglang_pd_fabric.tools.demo.compare import differences
from sglang_pd_fabric.tools.demo.metrics import read_transfers
from sglang_pd_fabric.tools.demo.processes import ServerError
from sglang_pd_fabric.tools.demo.prompts import Question, make_questions
from sglang_pd_fabric.tools.demo.report import print_report
from sglang_pd_fabric.tools.demo.servers import ORDERS, Ranks, ServerOptions
from sglang_pd_fabric.tools.tiny.config import MODELS


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(
        prog="launch/local",
        description=(
            "Start prefill and decode servers, a router and one ordinary server on this machine (no GPU), "
            "with a tiny model made on the spot; ask all of them the same questions; compare the answers "
            "token by token. The exit status is 0 only if every answer was equal."
        ),
    )
    add = result.add_argument
    add(
        "--model",
        choices=MODELS,
        default="gqa",
        help="gqa: Qwen3-MoE; mqa: the same with one KV head; mla: DeepSeek-V3 (default: gqa)",
    )
    add(
        "--provider",
        choices=("tcp", "shm", "mapped"),
        default="tcp",
        help="what moves the KV cache: a libfabric provider, or mapped memory (default: tcp)",
    )
    add("--prefill", type=_count, default=1, metavar="N", help="number of prefill servers (default: 1)")
    add("--decode", type=_count, default=1, metavar="N", help="number of decode servers (default: 1)")
    add("--prefill-tp", type=_count, default=1, metavar="N", help="ranks of a prefill server (default: 1)")
    add("--decode-tp", type=_count, default=1, metavar="N", help="ranks of a decode server (default: 1)")
    add(
        "--decode-dp",
        type=_count,
        default=1,
        metavar="N",
        help="groups of a decode server's ranks that attend to different requests (default: 1)",
    )
    add(
        "--order",
        choices=ORDERS,
        default="nhd",
        help="of a page: by token or by head, gqa only (default: nhd)",
    )
    add("--page-size", type=_count, default=16, metavar="TOKENS", help="tokens per KV page (default: 16)")
    add("--prompts", type=_count, default=20, metavar="N", help="number of questions (default: 20)")
    add("--at-once", type=_count, default=8, metavar="N", help="questions in flight (default: 8)")
    add(
        "--backend",
        default="fabric",
        help="transfer backend; a stock one such as mooncake_tcp serves for comparison (default: fabric)",
    )
    add("--logs", type=Path, help="directory for the servers' logs (default: a new one, named at start)")
    add(
        "--keep",
        action="store_true",
        help="leave all servers running at the end, until Ctrl-C, and print their addresses",
    )
    return result


def _count(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{value} is too small; give 1 or more")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return the exit status."""
    options = parser().parse_args(arguments)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="pd-fabric-logs-"))
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run(options, logs)
    except ServerError as error:
        print(f"\nfailed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _run(options: argparse.Namespace, logs: Path) -> int:
    questions = make_questions(options.prompts)
    cluster_options = ClusterOptions(
        model=options.model,
        backend=options.backend,
        provider=options.provider,
        page_size=options.page_size,
        prefill=options.prefill,
        decode=options.decode,
        prefill_ranks=Ranks(options.prefill_tp),
        decode_ranks=Ranks(options.decode_tp, options.decode_dp),
        order=options.order,
    )
    with ExitStack() as running:
        ordinary = running.enter_context(start_reference(cluster_options, logs))
        reference = ask_all(ordinary.url, questions, options.at_once)
        if not options.keep:
            # Before the cluster comes: all at once would need the memory of both.
            ordinary.stop()
        cluster = running.enter_context(Cluster(cluster_options, logs, _say))
        _say(f"asking {len(questions)} questions, {options.at_once} at a time")
        prefill_urls = [server.url for server in cluster.prefills]
        before = read_transfers(prefill_urls)
        answers = ask_all(cluster.url, questions, options.at_once)
        transfers = read_transfers(prefill_urls) - before
        print_report(reference, answers, transfers, options.backend, options.provider)
        found = differences(questions, reference, answers)
        for difference in found:
            _say(f"DIFFERENT {difference}")
        _say(f"{len(questions) - len(found)} of {len(questions)} answers are equal token for token")
        if options.keep:
            _tell_addresses(cluster, ordinary)
            threading.Event().wait()
        return 1 if found else 0


def start_reference(options: ServerOptions, logs: Path) -> Ordinary:
    """Start an ordinary server of the same model.

    It splits prompts as the cluster does, so that the table's times compare like with like.
    """
    plain = ServerOptions(
        model=options.model, dtype=options.dtype, chunked_prefill_size=options.chunked_prefill_size
    )
    return Ordinary(plain, logs, _say)


def reference_answers(
    options: ServerOptions, questions: Sequence[Question], logs: Path, at_once: int
) -> list[Answer]:
    """Start an ordinary server of the same model, ask it, and stop it again."""
    with start_reference(options, logs) as ordinary:
        return ask_all(ordinary.url, questions, at_once)


def _tell_addresses(cluster: Cluster, ordinary: Ordinary) -> None:
    for server in (*cluster.servers, ordinary.server):
        _say(f"{server.name:10s} {server.url}")
    prefill, decode = (
        " ".join(server.url for server in servers) for servers in (cluster.prefills, cluster.decodes)
    )
    _say(f"which phase is slow: sglang-pd-fabric explain --prefill {prefill} --decode {decode}")
    _say("Ctrl-C stops everything")


def _say(line: str) -> None:
    print(line, flush=True)
