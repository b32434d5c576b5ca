"""A piece of one buffer does not arrive: the client has an error and no token; the next request is answered.

The relay stands between the NICs of the shared cluster's servers and tells writes by the buffer that they go
to: keys of the first layer, values of the last, the metadata buffers. 8 seconds.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from tcp_relay import Fate

from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions
from sglang_pd_fabric.tools.demo.compare import difference
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import Question, text

from .asking import Outcome, assert_failed, bootstrap, post_all
from .conftest import Reference
from .direct import ask_both
from .relay import Relay
from .test_aborts import occupied
from .weak import wait_for

pytestmark = pytest.mark.sglang

OPTIONS = ClusterOptions(model="gqa", provider="tcp", page_size=64)
QUESTION = Question("victim", text(600, 99), answer_tokens=16)
KINDS = {
    "keys of the first layer": ("kv", 0),
    "values of the last layer": ("kv", -1),
    "first metadata buffer": ("aux", 0),
    "last metadata buffer": ("aux", -1),
}


@pytest.fixture(scope="module")
def cluster(pool: Pool) -> Iterator[Cluster]:
    """Whatever happens, its servers go on and hold nothing in the end."""
    servers = pool.cluster(OPTIONS)
    yield servers
    goes_on(servers)


def goes_on(cluster: Cluster) -> None:
    for server in (*cluster.prefills, *cluster.decodes):
        wait_for(server.ready)
        wait_for(lambda one=server: not occupied(one))
        assert "Scheduler hit an exception" not in server.log.read_text()


def ask(cluster: Cluster, port: int, *, stream: bool) -> tuple[Outcome, Outcome]:
    """Prefill's and decode's outcome."""
    sampling = {"temperature": 0, "max_new_tokens": QUESTION.answer_tokens}
    body: dict[str, Any] = {"text": QUESTION.prompt, "sampling_params": sampling, "stream": stream}
    body |= bootstrap(port, random.randrange(1, 1 << 63))
    servers = (cluster.prefills[0], cluster.decodes[0])
    first, second = post_all([(f"{server.url}/generate", body) for server in servers], seconds=120)
    return first, second


def right(cluster: Cluster, port: int, reference: Reference) -> bool:
    (expected,) = reference("gqa", [QUESTION])
    reply = ask_both(cluster.prefills[0].url, cluster.decodes[0].url, port, QUESTION).decode
    return difference(QUESTION, expected, reply.answer) is None


def tokens(outcome: Outcome) -> list[int]:
    """Whatever of an answer has reached the client."""
    said = [outcome.body, *outcome.events]
    return [token for each in said if isinstance(each, dict) for token in each.get("output_ids") or ()]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_buffer_that_breaks_off_is_an_error_and_the_next_request_is_answered(
    cluster: Cluster, reference: Reference, kind: str, stream: bool
) -> None:
    with Relay(cluster.bootstrap_ports[0], writes=True) as relay:
        assert right(cluster, relay.port, reference)
        relay.spoil(*KINDS[kind], Fate.BREAKS_OFF)
        for outcome in ask(cluster, relay.port, stream=stream):
            assert_failed(outcome, "writing to decode failed")
            assert not tokens(outcome)
        assert relay.has_spoiled
        assert right(cluster, relay.port, reference)
    assert right(cluster, cluster.bootstrap_ports[0], reference)
