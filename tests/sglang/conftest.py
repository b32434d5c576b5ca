"""Real servers for the tests of this folder, started once and shared.

`pool.cluster(ClusterOptions(...))` and `pool.ordinary(model)` start what is not yet running. Tests that kill
or freeze a server may do so with a shared one: the pool replaces a cluster that has a dead process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sglang_pd_fabric.tools.demo.client import Answer, ask_all
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import Question
from sglang_pd_fabric.tools.tiny.config import Model

Reference = Callable[[Model, list[Question]], list[Answer]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend", default="fabric", help="transfer backend of the test clusters, e.g. mooncake_tcp"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs tests that share servers one after another, and last the one that needs the whole machine."""
    items.sort(key=lambda item: ("test_mismatch" in item.nodeid, "mla" in item.nodeid))


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--backend", default="fabric"))


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pytest.importorskip("sglang", reason="SGLang is not installed: pip install 'sglang-pd-fabric[sglang]'")
    servers = Pool(tmp_path_factory.mktemp("servers"), lambda line: print(line, flush=True))
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def reference(pool: Pool) -> Reference:
    """Ask the ordinary server, one question at a time, each only once per session."""
    known: dict[tuple[Model, Question], Answer] = {}

    def answers(model: Model, questions: list[Question]) -> list[Answer]:
        missing = [question for question in questions if (model, question) not in known]
        if missing:
            replies = ask_all(pool.ordinary(model).url, missing, at_once=1)
            known.update({(model, question): reply for question, reply in zip(missing, replies, strict=True)})
        return [known[model, question] for question in questions]

    return answers
