"""`sglang-pd-fabric soak`: traffic with aborts against real servers that are killed, frozen and restarted."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_pd_fabric.tools.soak.report import Findings

QUESTIONS = 80
PURPOSE = "kill, freeze and restart real servers under traffic, and check every answer and what is left"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    add = parser.add_argument
    add("--minutes", type=float, default=20.0, metavar="N", help="of traffic (default: %(default)g)")
    add("--flavour", choices=("gqa", "mla"), default="gqa", help="tiny model (default: %(default)s)")
    add("--provider", choices=("tcp", "shm", "mapped"), default="tcp", help="(default: %(default)s)")
    add("--decode", type=int, default=2, metavar="N", help="decode servers (default: %(default)s)")
    add("--seed", type=int, default=None, help="of all that is random (default: another one each time)")
    add("--at-once", type=int, default=8, metavar="N", help="requests under way (default: %(default)s)")
    add(
        "--kill-gap",
        type=float,
        default=50.0,
        metavar="S",
        help="mean seconds between kills (default: 50)",
    )
    add("--freeze-gap", type=float, default=18.0, metavar="S", help="the same for freezes (default: 18)")
    add("--json", type=Path, metavar="FILE", help="write all figures")
    add("--svg", type=Path, metavar="FILE", help="draw faults and requests over time")
    add("--logs", type=Path, help="directory for the servers' logs (default: a new one, named at the start)")
    add(
        "--cache",
        type=Path,
        default=Path(tempfile.gettempdir()) / "sglang-pd-fabric-soak",
        help="directory for the ordinary server's answers (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags: 0 only if nothing was wrong."""
    from sglang_pd_fabric.tools.demo.processes import ServerError
    from sglang_pd_fabric.tools.soak.draw import draw
    from sglang_pd_fabric.tools.soak.report import as_record, print_findings

    seed = time.time_ns() % 1_000_000 if options.seed is None else options.seed
    logs = options.logs or Path(tempfile.mkdtemp(prefix="pd-fabric-soak-"))
    _say(f"seed {seed}, logs in {logs}")
    try:
        findings = _soak(options, seed, logs)
    except (ServerError, RuntimeError) as error:
        print(f"\nfailed: {error}", file=sys.stderr)
        return 1
    if options.json:
        flags = {"flavour": options.flavour, "provider": options.provider, "decode": options.decode}
        options.json.write_text(json.dumps(as_record(findings, flags), indent=1) + "\n")
    if options.svg:
        title = (
            f"{findings.seconds / 60:.0f} minutes: 1 prefill, {options.decode} decode, "
            f"tiny {options.flavour} model over {options.provider}"
        )
        names = ["prefill-0", *(f"decode-{index}" for index in range(options.decode))]
        options.svg.write_text(draw(findings.events, findings.outcomes, names, findings.seconds, title))
    print_findings(findings)
    for violation in findings.violations:
        print(f"VIOLATION {violation}")
    print(f"{len(findings.violations)} violations; seed {seed}, logs in {logs}")
    return 1 if findings.violations else 0


def _soak(options: argparse.Namespace, seed: int, logs: Path) -> Findings:
    """The right answers first, then the servers: all at once would take more memory."""
    from sglang_pd_fabric.tools.demo.cluster import Cluster
    from sglang_pd_fabric.tools.soak.questions import right_answers, soak_questions
    from sglang_pd_fabric.tools.soak.run import Soak, SoakOptions, soak_cluster

    cluster_options = soak_cluster(options.flavour, options.provider, options.decode)
    questions = soak_questions(cluster_options, QUESTIONS, seed)
    right = right_answers(cluster_options, questions, logs / "ordinary", options.cache)
    soak_options = SoakOptions(
        seconds=options.minutes * 60,
        seed=seed,
        at_once=options.at_once,
        kill_gap_s=options.kill_gap,
        freeze_gap_s=options.freeze_gap,
    )
    with Cluster(cluster_options, logs / "servers", _say) as cluster:
        return Soak(soak_options, cluster, questions, right, _say).run()


def _say(line: str) -> None:
    print(line, flush=True)
