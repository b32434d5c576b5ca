"""Every flag and variable that a recipe may set: why it is set, and what the tiny form makes of it.

The tiny form (``tiny.py``) is the same servers with the same flags in the same order, at a size that a laptop
without a GPU can run. What it changes is here and nowhere else, so that this table says what was **not** run.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sglang_pd_fabric.tools.tiny.config import CONTEXT_LENGTH

# Short enough for prompts of the tiny model to come in several chunks, as long ones do there.
CHUNK = 512


@dataclass(frozen=True)
class Setting:
    """A flag or a variable.

    Attributes:
        why: a recipe sets it; stands in the launch files.
        tiny: makes the tiny form's value of the recipe's. None: the value is kept.
        given: the tiny form's value is known only when it starts (a folder, a port).
        tiny_why: the value is replaced; or, of a value that is kept, what of it does not show on a CPU.
    """

    why: str
    tiny: Callable[[str], str] | None = None
    given: bool = False
    tiny_why: str = ""

    @property
    def replaced(self) -> bool:
        """Whether the tiny form has another value."""
        return self.given or self.tiny is not None


def _always(value: str) -> Callable[[str], str]:
    return lambda _full: value


def _quarter(full: str) -> str:
    return str(max(1, int(full) // 4))


_RANKS = "two cores: 8 ranks are 2, 4 are 1"
_ONE_HOST = "all servers are on one host"

SERVER: dict[str, Setting] = {
    "--model-path": Setting(
        "what is served; a folder on a local disk starts sooner than a download",
        given=True,
        tiny_why="a tiny checkpoint of the same kind of attention, fp32: no FP8, another number of heads",
    ),
    "--disaggregation-mode": Setting("the side that this server is on"),
    "--disaggregation-transfer-backend": Setting("KV pages travel by this package"),
    "--disaggregation-bootstrap-port": Setting(
        "where decodes ask this prefill for its ranks; the router tells them", given=True, tiny_why=_ONE_HOST
    ),
    "--host": Setting(
        "other machines must reach it", tiny=_always("127.0.0.1"), tiny_why="nobody else is to reach it"
    ),
    "--port": Setting("the router and its clients", given=True, tiny_why=_ONE_HOST),
    "--enable-metrics": Setting("`/metrics`, for `explain`, the dashboard and the alerts"),
    "--trust-remote-code": Setting("the checkpoint brings Python files of its own"),
    "--attention-backend": Setting(
        "reads pages that are ordered by head, on Hopper",
        tiny=_always("torch_native"),
        tiny_why="fa3 needs a GPU",
    ),
    "--page-size": Setting("large pages make large writes, and few of them; the same on both sides"),
    "--context-length": Setting(
        "the longest request, prompt and answer; the same on both sides",
        tiny=_always(str(CONTEXT_LENGTH)),
        tiny_why="what the tiny checkpoint can",
    ),
    "--tp-size": Setting("the GPUs of this server", tiny=_quarter, tiny_why=_RANKS),
    "--attn-dp-size": Setting(
        "so many groups of ranks attend to different requests, and each request's cache is on one GPU only",
        tiny=_quarter,
        tiny_why=_RANKS,
    ),
    "--ep-size": Setting(
        "experts are spread as a whole: FP8 blocks of 128 do not divide their width by the ranks",
        tiny=_always("1"),
        tiny_why="SGLang's experts for CPUs must all be on their rank (moe_forward_native of 0.5.23)",
    ),
    "--chunked-prefill-size": Setting(
        "tokens of a forward pass; a chunk's transfer hides behind its next layers",
        tiny=_always(str(CHUNK)),
        tiny_why="prompts are shorter too, and are to come in chunks",
    ),
    "--mem-fraction-static": Setting(
        "the share of GPU memory for weights and KV pool; the rest is for activations and graphs",
        tiny_why="the CPU platform limits the pool to 16,384 tokens before",
    ),
    "--max-running-requests": Setting("seats on decode, of all its groups together; more requests wait"),
    "--cuda-graph-max-bs-decode": Setting(
        "graphs for as many requests as a group has seats", tiny_why="a CPU has no graphs"
    ),
    "--disaggregation-decode-retraction-backup": Setting(
        "SGLang cannot copy pages that are ordered by head aside; what is retracted ends with 503"
    ),
    "--tool-call-parser": Setting("answers of this model that call tools"),
}

ROUTER: dict[str, Setting] = {
    "--pd-disaggregation": Setting("each request goes to one prefill and one decode"),
    "--prefill": Setting("URL and bootstrap port of each", given=True, tiny_why=_ONE_HOST),
    "--decode": Setting("URL of each", given=True, tiny_why=_ONE_HOST),
    "--decode-policy": Setting(
        "decodes keep no prefixes, so each is as good; prefills are chosen by theirs, as is the default"
    ),
    "--host": SERVER["--host"],
    "--port": Setting("clients", given=True, tiny_why=_ONE_HOST),
}

VARIABLES: dict[str, Setting] = {
    "SGLANG_PD_FABRIC_PROVIDER": Setting(
        "named, so that a missing NIC ends the start; `auto` would take tcp",
        tiny=_always("tcp"),
        tiny_why="no EFA and no ConnectX here",
    ),
    "SGLANG_USE_HND_KVCACHE": Setting(
        "pages are ordered by head: a head's share of a page is one piece whatever the TP of the other side"
    ),
}

# What only the tiny form sets: flags of a server, behind the recipe's, and variables.
ADDED_FLAGS: dict[str, tuple[str, str]] = {
    "--dtype": ("float32", "SGLang would take fp16, in which another order of summation changes an answer"),
}
ADDED_VARIABLES: dict[str, tuple[str, str]] = {
    "SGLANG_PLATFORM": ("pd_fabric_cpu", "no GPU: every operation in its plain torch form"),
    "SGLANG_PD_FABRIC_SAME_HOST": ("provider", "pages are to go by the provider, not through mapped memory"),
    "SGLANG_HOST_IP": ("127.0.0.1", "everything stays on the loopback interface"),
    "OMP_NUM_THREADS": ("1", "the servers share a few cores"),
}
