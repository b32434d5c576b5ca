"""The flags of ``plan``, and the question that they ask."""

from __future__ import annotations

import argparse
from pathlib import Path

from sglang_pd_fabric.tools.plan.costs import Server
from sglang_pd_fabric.tools.plan.errors import PlanError
from sglang_pd_fabric.tools.plan.fleet import Fleet
from sglang_pd_fabric.tools.plan.hardware import GPUS, NICS, load_gpu, load_nic
from sglang_pd_fabric.tools.plan.make import Question
from sglang_pd_fabric.tools.plan.model import load_model, names
from sglang_pd_fabric.tools.plan.outcome import Targets
from sglang_pd_fabric.tools.plan.transfer import Link
from sglang_pd_fabric.tools.plan.workload import Workload, parse_lengths

_KV_BYTES = {"bf16": 2, "fp8": 1}
_LENGTHS = "tokens: 2000, uniform:500-4000 or lognormal:MEDIAN,SIGMA"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    add = parser.add_argument
    add(
        "--model",
        metavar="NAME|FILE",
        help=f"{', '.join(names())}, or the path of a Hugging Face config.json",
    )
    add("--gpu", default="h200", metavar="NAME", help=f"{', '.join(GPUS)} (default: %(default)s)")
    nics = f"{', '.join(NICS)}, or all NICs of a GPU as gbps=,mops=,us= (default: %(default)s)"
    add("--nic", default="efa", metavar="NAME", help=nics)
    add("--tp", type=int, default=8, metavar="N", help="GPUs of a server (default: %(default)s)")
    add("--prefill-tp", type=int, metavar="N", help="GPUs of a prefill server (default: --tp)")
    add(
        "--dp",
        type=int,
        default=1,
        metavar="N",
        help="data-parallel attention of decode (default: %(default)s)",
    )
    add(
        "--kv-dtype",
        default="bf16",
        metavar="TYPE",
        help="of the KV cache: bf16 or fp8 (default: %(default)s)",
    )
    add("--page-size", type=int, default=64, metavar="N", help="tokens of a page (default: %(default)s)")
    add(
        "--chunk", type=int, default=8192, metavar="N", help="tokens of a prefill pass (default: %(default)s)"
    )
    budget = "tokens of a pass with chunked prefill, decode's among them (default: %(default)s)"
    add("--budget", type=int, default=2048, metavar="N", help=budget)
    add(
        "--prompt", default="lognormal:3000,0.8", metavar="LENGTHS", help=f"{_LENGTHS} (default: %(default)s)"
    )
    add("--output", default="lognormal:250,0.6", metavar="LENGTHS", help="likewise (default: %(default)s)")
    add(
        "--qps",
        type=float,
        default=10.0,
        metavar="N",
        help="requests a second, Poisson (default: %(default)s)",
    )
    add(
        "--ttft",
        type=float,
        default=2000.0,
        metavar="MS",
        help="time to first token wanted (default: %(default)s)",
    )
    add(
        "--tpot",
        type=float,
        default=30.0,
        metavar="MS",
        help="time between tokens wanted (default: %(default)s)",
    )
    add("--share", type=float, default=0.9, metavar="X", help="of requests in time (default: %(default)s)")
    add("--servers", metavar="P:D", help="prefill and decode servers (default: as many as are needed)")
    add("--requests", type=int, default=400, metavar="N", help="to simulate; 0: none (default: %(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of trace and router (default: %(default)s)")
    add("--svg", type=Path, metavar="FILE", help="draw goodput over requests a second")
    add("--timeline", type=Path, metavar="FILE", help="draw the first passes of the simulated servers")
    add("--published", action="store_true", help="compare with published figures")
    add("--fit", action="store_true", help="find the constants again from the published figures")
    add("--json", action="store_true", help="print JSON")


def question(options: argparse.Namespace) -> Question:
    """What the flags ask.

    Raises:
        PlanError: a value cannot be used; the message names the flag, the value and the fix.
    """
    if not options.model:
        raise PlanError(f"--model: missing; give one of {', '.join(names())}, or the path of a config.json")
    for flag in ("page_size", "chunk", "budget", "qps", "ttft", "tpot"):
        _above_zero(flag, getattr(options, flag))
    for flag in ("requests", "seed"):
        if getattr(options, flag) < 0:
            raise PlanError(f"--{flag} {getattr(options, flag)}: give 0 or more")
    if not 0 < options.share <= 1:
        raise PlanError(f"--share {options.share:g}: give a share above 0 and at most 1, like 0.9")
    if options.kv_dtype not in _KV_BYTES:
        raise PlanError(f"--kv-dtype {options.kv_dtype}: give one of {', '.join(_KV_BYTES)}")
    model, gpu = load_model(options.model), load_gpu(options.gpu)
    kv_bytes = _KV_BYTES[options.kv_dtype]
    prefill_tp = options.tp if options.prefill_tp is None else options.prefill_tp
    prefill = Server(model, gpu, prefill_tp, kv_bytes=kv_bytes)
    decode = Server(model, gpu, options.tp, options.dp, kv_bytes)
    link = Link(prefill, load_nic(options.nic), options.page_size)
    workload = Workload(
        parse_lengths("--prompt", options.prompt), parse_lengths("--output", options.output), options.qps
    )
    return Question(
        fleet=Fleet(prefill, decode, link, options.chunk, options.budget),
        workload=workload,
        targets=Targets(options.ttft / 1e3, options.tpot / 1e3, options.share),
        servers=_servers(options.servers),
        requests=options.requests,
        seed=options.seed,
    )


def _above_zero(flag: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise PlanError(f"--{flag.replace('_', '-')} {value:g}: give a number above 0")


def _servers(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    prefills, _, decodes = text.partition(":")
    if not (prefills.isdecimal() and decodes.isdecimal() and int(prefills) and int(decodes)):
        raise PlanError(f"--servers {text}: give prefill and decode servers, at least one of each, like 1:3")
    return int(prefills), int(decodes)
