"""Servers that do not fit each other answer with an error that names what differs, on both sides."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_pd_fabric.tools.demo.cluster import Group, checkpoint
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.processes import Server
from sglang_pd_fabric.tools.demo.prompts import Question, text
from sglang_pd_fabric.tools.demo.servers import Ports, ServerOptions, free_ports, server_spec

from .direct import Replies, ask_both
from .weak import wait_for

pytestmark = pytest.mark.sglang

# Both sides allow another name of the model, which must hide no other difference.
OPTIONS = ServerOptions(
    model="gqa", page_size=16, env={"SGLANG_PD_FABRIC_ALLOW_MISMATCH": "model,draft_model"}
)
# What a decode server is given instead of what prefill has, and the words that must appear.
DECODES = {
    "page size": (("--page-size", "64"), 0, ("page_size: prefill has 16, decode has 64", "--page-size")),
    "dtype": (("--dtype", "bfloat16"), 0, ("dtype: prefill has 'float32', decode has 'bfloat16'", "--dtype")),
    "weights": ((), 1, ("weights: prefill has", "--model-path")),
    "name": ((), 0, ()),
}
WAIVED = ("SERVED ALTHOUGH THEY DIFFER", "model: prefill has")


class OnePrefillManyDecodes(Group):
    """A prefill server and decode servers that differ from it, each in one thing."""

    def __init__(self, logs: Path) -> None:
        super().__init__(logs, lambda line: print(line, flush=True))
        ports = iter(free_ports(2 + len(DECODES)))
        self.bootstrap_port = next(ports)
        prefill_ports = Ports(next(ports), self.bootstrap_port)
        specs = [server_spec("prefill", 0, checkpoint("gqa"), OPTIONS, prefill_ports)]
        for index, (flags, seed, words) in enumerate(DECODES.values()):
            # A flag that is given twice has its last value.
            model = checkpoint("gqa", seed) if words else renamed(logs)
            specs.append(server_spec("decode", index, model, OPTIONS, Ports(next(ports)), flags))
        self.prefill, *decodes = self._start(specs)
        self.decodes = dict(zip(DECODES, decodes, strict=True))

    def ask(self, decode: Server, seed: int) -> Replies:
        question = Question("any", text(100, seed), answer_tokens=4)
        return ask_both(self.prefill.url, decode.url, self.bootstrap_port, question, seconds=60)


def renamed(folder: Path) -> Path:
    """The same weights under a config that says one thing more."""
    copy = Path(shutil.copytree(checkpoint("gqa"), folder / "renamed"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "comment": "the same model"}))
    return copy


@pytest.fixture(scope="module")
def group(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnePrefillManyDecodes]:
    pool.stop()  # makes room on a small machine
    with OnePrefillManyDecodes(tmp_path_factory.mktemp("mismatch")) as servers:
        yield servers


@pytest.mark.parametrize("what", [name for name in DECODES if DECODES[name][2]])
def test_a_difference_is_named_on_both_sides_before_any_page_moves(
    group: OnePrefillManyDecodes, what: str
) -> None:
    words = DECODES[what][2]
    decode = group.decodes[what]
    for attempt in range(2):  # at first contact, and once more
        replies = group.ask(decode, attempt)
        for reply in replies:
            assert reply.status == 500
            assert all(word in reply.error for word in words), reply.error
    for server in (group.prefill, decode):
        assert all(word in server.log.read_text() for word in words)
        assert server.alive()
        wait_for(server.ready)


def test_a_decode_that_may_differ_is_served_all_the_same_and_both_say_so(
    group: OnePrefillManyDecodes,
) -> None:
    decode = group.decodes["name"]
    for attempt in range(3):
        replies = group.ask(decode, attempt)
        assert [reply.status for reply in replies] == [200, 200]
        assert replies.decode.answer.text
    for server in (group.prefill, decode):
        assert all(word in server.log.read_text() for word in WAIVED)
