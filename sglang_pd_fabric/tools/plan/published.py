"""Figures that others have published, and what the planner says to the same question.

Every row uses the same constants. What a source does not say, and we had to assume, is in ``ASSUMED``, once
for all rows of that source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sglang_pd_fabric.tools.plan.constants import CONSTANTS, Constants
from sglang_pd_fabric.tools.plan.costs import Server, chunks
from sglang_pd_fabric.tools.plan.hardware import GPUS, NICS
from sglang_pd_fabric.tools.plan.model import load_model
from sglang_pd_fabric.tools.plan.steady import Decoding, Mix, decoding
from sglang_pd_fabric.tools.plan.transfer import Link

PAPER = "arXiv 2510.27656, table 3"
NIC_TABLE = "arXiv 2510.27656, table 2"
BLOG = "Perplexity, Disaggregated Prefill and Decode, 2025"
SARATHI = "Sarathi-Serve, OSDI 2024, figure 14"
GPUSTACK = "GPUStack performance lab, DeepSeek-R1 on H200"
R1_PROMPT, R1_OUTPUT = 4700, 300
R1_BUSY = 0.8
ASSUMED = {
    PAPER: "bf16 weights; the decode pass that disaggregation adds has the request alone",
    BLOG: (
        f"8 H200 a node; prompts of {R1_PROMPT} tokens, answers of {R1_OUTPUT} (not in the blog; a talk of "
        "the same team counts 5k tokens a request); the mixed node at 1 QPS too; prefill "
        f"{R1_BUSY:.0%} busy at the ratio; more TTFT at light load, without queues"
    ),
    SARATHI: "prompts of 4,096 tokens; the paper's text says at most about 25 %",
    GPUSTACK: "prefill alone, prompts of 8,192 tokens (what we could read of the page has no lengths)",
}
_CHUNK = 16384
# Tokens: TTFT not disaggregated and disaggregated, compute and transfer of a layer of the last chunk, ms.
_QWEN = {
    4096: (214, 260, 2.267, 0.661),
    8192: (433, 501, 4.578, 0.952),
    16384: (929, 1042, 9.860, 1.610),
    32768: (2179, 2317, 13.295, 1.606),
    65536: (5681, 5852, 20.344, 1.611),
    131072: (16735, 17056, 34.895, 1.609),
}
_WRITES = {"efa": (17, 138, 274, 364), "cx7": (91, 320, 367, 370)}  # Gb/s of paged writes of 1, 8, 16, 64 KiB
_SINGLE = {
    "efa": (16, 54, 145, 336),
    "cx7": (44, 116, 245, 378),
}  # Gb/s of single writes of 1/16, 1/4, 1, 32 MiB


@dataclass(frozen=True)
class Row:
    """A published figure.

    ``within``: the error that we state for it, as a share. ``least``: it is a lower bound.
    """

    source: str
    what: str
    unit: str
    published: float
    within: float
    predict: Callable[[Constants], float]
    least: bool = False

    def error(self, constants: Constants = CONSTANTS) -> float:
        """Prediction over figure, minus 1; 0 where a lower bound is kept."""
        error = self.predict(constants) / self.published - 1
        return min(0.0, error) if self.least else error


def rows() -> list[Row]:
    """All of them."""
    found = []
    for tokens, (alone, apart, compute, transfer) in _QWEN.items():
        name = f"Qwen3-235B TP4, {tokens // 1024}K tokens"
        found += [
            Row(PAPER, f"{name}: TTFT", "ms", alone, 0.05, partial(_ttft, tokens, False)),
            Row(PAPER, f"{name}: TTFT disaggregated", "ms", apart, 0.15, partial(_ttft, tokens, True)),
            Row(PAPER, f"{name}: compute of a layer", "ms", compute, 0.06, partial(_layer, tokens)),
            Row(PAPER, f"{name}: transfer of a layer", "ms", transfer, 0.05, partial(_transfer, tokens)),
        ]
    found += [
        Row(SARATHI, "Yi-34B TP2 on A100: prefill in chunks of 512", "x", 1.25, 0.05, _yi),
        Row(GPUSTACK, "R1 on 8 H200: prompt tokens", "k/s", 16.1, 0.25, _r1_prefill),
        Row(BLOG, "R1 mixed", "TPS", 50, 0.25, partial(_r1_tps, "mixed")),
        Row(
            BLOG,
            "R1 disaggregated, 1 QPS a decode node",
            "TPS",
            90,
            0.1,
            partial(_r1_tps, "apart"),
            least=True,
        ),
        Row(BLOG, "R1 decode nodes for one prefill node", "", 3, 0.25, _r1_ratio),
        Row(BLOG, "R1 TTFT disaggregated minus mixed", "ms", 100, 0.35, _r1_more),
        Row(BLOG, "R1 DP decode, 1 QPS a rank, 8 ranks", "TPS", 50, 0.35, partial(_r1_tps, "dp")),
    ]
    for nic, writes in _WRITES.items():
        for kib, paged in zip((1, 8, 16, 64), writes, strict=True):
            found.append(
                Row(
                    NIC_TABLE,
                    f"{nic} paged writes of {kib} KiB",
                    "Gb/s",
                    paged,
                    0.2,
                    partial(_paged, nic, kib),
                )
            )
        for kib, single in zip((64, 256, 1024, 32768), _SINGLE[nic], strict=True):
            found.append(
                Row(
                    NIC_TABLE,
                    f"{nic} one write of {kib} KiB",
                    "Gb/s",
                    single,
                    0.2,
                    partial(_single, nic, kib),
                )
            )
    return found


def _qwen(constants: Constants) -> Link:
    server = Server(load_model("qwen3-235b"), GPUS["h200"], tp=4, constants=constants)
    return Link(server, NICS["efa"], page_tokens=128, one_thread=True)


def _ttft(tokens: int, apart: bool, constants: Constants) -> float:
    link = _qwen(constants)
    alone = link.server.prompt_s(tokens, _CHUNK)
    more = (
        link.layerwise_s(tokens, _CHUNK) + constants.join_s + link.server.decode_s(1, tokens) if apart else 0
    )
    return 1e3 * (alone + more)


def _layer(tokens: int, constants: Constants) -> float:
    server = _qwen(constants).server
    return 1e3 * server.pass_s(chunks(tokens, _CHUNK)[-1]) / server.model.layers


def _transfer(tokens: int, constants: Constants) -> float:
    return 1e3 * _qwen(constants).layer_s(min(tokens, _CHUNK))


def _yi(constants: Constants) -> float:
    server = Server(load_model("yi-34b"), GPUS["a100"], tp=2, constants=constants)
    return server.prompt_s(4096, 512) / server.prompt_s(4096, 4096)


def r1(constants: Constants = CONSTANTS, dp: int = 1) -> Server:
    """The server of R1's rows."""
    return Server(load_model("deepseek-r1"), GPUS["h200"], tp=8, dp=dp, constants=constants)


def _r1_prefill(constants: Constants) -> float:
    return 8192 / r1(constants).prompt_s(8192, 8192) / 1e3


def _r1_decoding(kind: str, constants: Constants) -> Decoding:
    server, mix = r1(constants, dp=8 if kind == "dp" else 1), None
    if kind == "mixed":
        mix = Mix(1.0, 1, server.prompt_s(R1_PROMPT, _CHUNK), R1_PROMPT, mixed=False)
    return decoding(server, 8 if kind == "dp" else 1, R1_OUTPUT, R1_PROMPT + R1_OUTPUT / 2, mix)


def _r1_tps(kind: str, constants: Constants) -> float:
    return 1 / _r1_decoding(kind, constants).step_s


def _r1_ratio(constants: Constants) -> float:
    return R1_BUSY / r1(constants).prompt_s(R1_PROMPT, _CHUNK)


def _r1_more(constants: Constants) -> float:
    shown = Link(r1(constants), NICS["efa"], page_tokens=64).layerwise_s(R1_PROMPT, _CHUNK)
    return 1e3 * (shown + constants.join_s + _r1_decoding("apart", constants).step_s)


def _paged(nic: str, kib: int, _constants: Constants) -> float:
    size = kib * 1024
    return 8e-9 * size / NICS[nic].stream_s(1, size)


def _single(nic: str, kib: int, _constants: Constants) -> float:
    size = kib * 1024
    return 8e-9 * size / NICS[nic].write_s(size)
