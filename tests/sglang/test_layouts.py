"""Every pair of layouts: ranks of prefill and decode, order of a page, its size, providers, schedulers.

Each case is a cluster of its own, so all but one are for the night. The judge is always the same ordinary
server with one rank: 20 questions, 8 at a time, twice, so that the second round finds prefixes in the cache.
Each request's bytes are compared by checksums too (SGLANG_PD_FABRIC_INTEGRITY).
"""

from __future__ import annotations

from typing import Any

import pytest
from tcp_relay import Fate

from sglang_pd_fabric.tools.demo.client import ask_all
from sglang_pd_fabric.tools.demo.cluster import ClusterOptions
from sglang_pd_fabric.tools.demo.compare import differences
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import make_questions
from sglang_pd_fabric.tools.demo.servers import Order, Ranks
from sglang_pd_fabric.tools.tiny.config import Model

from .asking import assert_failed
from .conftest import Reference
from .relay import Relay
from .test_incomplete import KINDS, ask, goes_on, right, tokens

pytestmark = pytest.mark.sglang

QUESTIONS = make_questions(20)
CHUNK = 128

nightly = pytest.mark.nightly


def case(
    model: Model,
    prefill: str,
    decode: str,
    order: Order,
    page_size: int,
    provider: str,
    overlap: bool,
    *marks: pytest.MarkDecorator,
) -> Any:
    """One cluster. Ranks are written tp2, or tp2dp2 with DP attention, as in the name of the test."""
    options = ClusterOptions(
        model=model,
        provider=provider,
        page_size=page_size,
        order=order,
        chunked_prefill_size=CHUNK,
        overlap=overlap,
        env={"SGLANG_PD_FABRIC_INTEGRITY": "1"},
        prefill_ranks=ranks(prefill),
        decode_ranks=ranks(decode),
    )
    loop = "overlap" if overlap else "normal"
    name = f"{model}-{prefill}-{decode}-{order}-page{page_size}-{provider}-{loop}"
    return pytest.param(options, id=name, marks=marks)


def ranks(text: str) -> Ranks:
    tp, _, dp = text.removeprefix("tp").partition("dp")
    return Ranks(int(tp), int(dp or 1))


CASES = [
    case("gqa", "tp1", "tp1", "hnd", 16, "tcp", True),
    case("gqa", "tp1", "tp1", "hnd", 64, "shm", False, nightly),
    case("gqa", "tp1", "tp1", "nhd", 64, "tcp", False, nightly),
    case("gqa", "tp2", "tp2", "nhd", 16, "shm", True, nightly),
    case("gqa", "tp2", "tp2", "hnd", 64, "tcp", False, nightly),
    case("gqa", "tp2", "tp1", "nhd", 16, "tcp", True, nightly),
    case("gqa", "tp2", "tp1", "hnd", 64, "shm", False, nightly),
    case("gqa", "tp1", "tp2", "nhd", 64, "shm", True, nightly),
    case("gqa", "tp1", "tp2", "hnd", 16, "tcp", False, nightly),
    case("mla", "tp1", "tp1", "nhd", 64, "tcp", False, nightly),
    case("mla", "tp2", "tp2", "nhd", 16, "tcp", True, nightly),
    case("mla", "tp2", "tp2", "nhd", 64, "shm", False, nightly),
    case("mla", "tp1", "tp2dp2", "nhd", 16, "tcp", True, nightly),
    case("mla", "tp2", "tp1", "nhd", 64, "tcp", True, nightly),
    case("mla", "tp1", "tp2", "nhd", 16, "shm", False, nightly),
    case("mla", "tp2", "tp2dp2", "nhd", 16, "tcp", False, nightly),
    case("mla", "tp2", "tp2dp2", "nhd", 64, "shm", True, nightly),
]


@pytest.mark.parametrize("options", CASES)
def test_any_pair_of_layouts_answers_what_one_rank_answers(
    pool: Pool, reference: Reference, options: ClusterOptions
) -> None:
    expected = reference(options.model, QUESTIONS)
    cluster = pool.cluster(options)
    assert not differences(QUESTIONS, expected, ask_all(cluster.url, QUESTIONS, at_once=8))
    again = ask_all(cluster.url, QUESTIONS, at_once=8)
    assert not differences(QUESTIONS, expected, again)
    for server in (*cluster.prefills, *cluster.decodes):
        assert "Checksums of every request" in server.log.read_text()
    assert any(answer.cached_tokens for answer in again)


@nightly
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_that_change_on_their_way_are_an_error_and_no_answer(
    pool: Pool, reference: Reference, kind: str
) -> None:
    (options,) = CASES[0].values
    cluster = pool.cluster(options)
    with Relay(cluster.bootstrap_ports[0], writes=True) as relay:
        assert right(cluster, relay.port, reference)
        relay.spoil(*KINDS[kind], Fate.IS_ALTERED)
        _prefill, outcome = ask(cluster, relay.port, stream=False)
        assert relay.has_spoiled
        assert_failed(outcome, "integrity: what decode holds is not what prefill")
        assert not tokens(outcome)
        assert right(cluster, relay.port, reference)
    goes_on(cluster)
