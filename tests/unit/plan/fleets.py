"""Fleets that the planner's tests share."""

from sglang_pd_fabric.tools.plan.costs import Server
from sglang_pd_fabric.tools.plan.fleet import Fleet
from sglang_pd_fabric.tools.plan.hardware import GPUS, NICS, Gpu
from sglang_pd_fabric.tools.plan.model import load_model
from sglang_pd_fabric.tools.plan.transfer import Link
from sglang_pd_fabric.tools.plan.workload import Workload, parse_lengths


def server(model: str = "deepseek-r1", gpu: Gpu = GPUS["h200"], tp: int = 8, dp: int = 1) -> Server:
    return Server(load_model(model), gpu, tp, dp)


def fleet(one: Server | None = None, chunk: int = 8192, budget: int = 2048) -> Fleet:
    one = one or server()
    return Fleet(one, one, Link(one, NICS["efa"], page_tokens=64), chunk, budget)


def workload(qps: float, prompt: str = "lognormal:3000,0.6", output: str = "uniform:20-120") -> Workload:
    return Workload(parse_lengths("--prompt", prompt), parse_lengths("--output", output), qps)
