"""What passes between prefill and decode, seen from between them: one message a request, and every page."""

import functools
import re

import httpx
import msgspec
import numpy as np
import pytest

from sglang_pd_fabric.messenger.messages import Pull
from sglang_pd_fabric.tools.demo.client import ask_all
from sglang_pd_fabric.tools.demo.cluster import ClusterOptions
from sglang_pd_fabric.tools.demo.compare import difference
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import Question, text
from sglang_pd_fabric.tools.tiny.config import Model

from .conftest import Reference
from .direct import ask_both
from .relay import Relay

pytestmark = pytest.mark.sglang

OPTIONS: dict[Model, ClusterOptions] = {
    "gqa": ClusterOptions(model="gqa", provider="tcp", page_size=64),
    "mla": ClusterOptions(model="mla", provider="shm", page_size=64),
}


def test_a_healthy_transfer_needs_one_message_and_decode_receives_none(pool: Pool) -> None:
    cluster = pool.cluster(OPTIONS["gqa"])
    requests = 5
    with Relay(cluster.bootstrap_ports[0]) as relay:
        for index in range(requests):
            question = Question(f"q{index}", text(300 + index, index))
            replies = ask_both(cluster.prefills[0].url, cluster.decodes[0].url, relay.port, question)
            assert replies.decode.answer.text
        late = {"Counting", "Over", "Queued"}  # said only of a request that takes long
        seen = {name: count for name, count in relay.seen.items() if name not in late}
        assert seen == {"Hello": 1, "Welcome": 1, "Pull": requests}


@pytest.mark.parametrize("model", ["gqa", "mla"])
def test_an_answer_depends_on_every_page_that_travels(pool: Pool, reference: Reference, model: Model) -> None:
    """Each page in turn is led astray in flight: what lies in its place is not this prompt's."""
    question = Question("victim", text(600, 99), answer_tokens=16)
    (expected,) = reference(model, [question])
    cluster = pool.cluster(OPTIONS[model])
    stray_page = OPTIONS[model].max_total_tokens // OPTIONS[model].page_size
    pages = -(-len(question.prompt) // OPTIONS[model].page_size)

    with Relay(cluster.bootstrap_ports[0]) as relay:

        def ask() -> str | None:
            replies = ask_both(cluster.prefills[0].url, cluster.decodes[0].url, relay.port, question)
            found = difference(question, expected, replies.decode.answer)
            return found.reason if found else None

        assert ask() is None
        for victim in range(pages):
            relay.alter = functools.partial(astray, victim, stray_page)
            assert (reason := ask()), f"page {victim} was not missed"
            assert "differs from token" in reason
        relay.alter = lambda pull: pull
        assert ask() is None


def astray(victim: int, stray_page: int, pull: Pull) -> Pull:
    pages = np.frombuffer(pull.pages, "<u4").copy()
    pages[victim] = stray_page
    return msgspec.structs.replace(pull, pages=pages.tobytes())


def test_the_provider_can_be_seen_on_the_metrics_page(pool: Pool) -> None:
    cluster = pool.cluster(OPTIONS["gqa"])
    for server in (*cluster.prefills, *cluster.decodes):
        page = httpx.get(f"{server.url}/metrics", timeout=30, follow_redirects=True).text
        assert re.search(r'^sglang_pd_fabric:nics\{.*provider="tcp".*\} 1\.0$', page, re.M)


def test_the_router_hides_all_of_this(pool: Pool, reference: Reference) -> None:
    question = Question("plain", text(100, 3))
    cluster = pool.cluster(OPTIONS["gqa"])
    assert difference(question, *reference("gqa", [question]), *ask_all(cluster.url, [question])) is None
