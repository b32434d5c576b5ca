"""Servers with and without the shared secret, and a bootstrap port that is taken. Costs about 90 seconds."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from sglang_pd_fabric.tools.demo.cluster import Group, checkpoint
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.processes import Server, ServerError, wait_ready
from sglang_pd_fabric.tools.demo.prompts import Question, text
from sglang_pd_fabric.tools.demo.servers import HOST, Ports, ServerOptions, free_ports, server_spec

from .direct import ask_both

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]

SETTING = "SGLANG_PD_FABRIC_SECRET_FILE"
START_S = 240.0
QUESTION = Question("any", text(100, 5), answer_tokens=4)


class OneSecretTwoDecodes(Group):
    """A prefill server with a secret, a decode server that has it too, and one that has none."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, lambda line: print(line, flush=True))
        secret = folder / "secret"
        secret.write_text("a secret of this test\n")
        secret.chmod(0o600)
        plain = ServerOptions()
        sealed = replace(plain, env={SETTING: str(secret)})
        model = checkpoint("gqa")
        self.bootstrap_port, *ports = free_ports(4)
        self.prefill, self.friend, self.stranger = self._start(
            [
                server_spec("prefill", 0, model, sealed, Ports(ports[0], self.bootstrap_port)),
                server_spec("decode", 0, model, sealed, Ports(ports[1])),
                server_spec("decode", 1, model, plain, Ports(ports[2])),
            ]
        )


@pytest.fixture(scope="module")
def group(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneSecretTwoDecodes]:
    pool.stop()  # makes room on a small machine
    with OneSecretTwoDecodes(tmp_path_factory.mktemp("secret")) as servers:
        yield servers


def test_with_the_same_secret_requests_are_answered(group: OneSecretTwoDecodes) -> None:
    replies = ask_both(group.prefill.url, group.friend.url, group.bootstrap_port, QUESTION)
    assert [reply.status for reply in replies] == [200, 200]
    assert "a secret of this test" not in group.prefill.log.read_text() + group.friend.log.read_text()


def test_without_it_the_request_ends_and_both_sides_say_why(group: OneSecretTwoDecodes) -> None:
    # Prefill is not asked: only a router would tell it that decode has given up.
    body = {"text": QUESTION.prompt, "bootstrap_host": HOST, "bootstrap_port": group.bootstrap_port}
    reply = httpx.post(f"{group.stranger.url}/generate", json={**body, "bootstrap_room": 7}, timeout=120)
    assert reply.status_code >= 500
    assert "this prefill server has a secret" in group.stranger.log.read_text()
    assert "this prefill server has a secret" in group.prefill.log.read_text()
    assert SETTING in group.prefill.log.read_text()
    replies = ask_both(group.prefill.url, group.friend.url, group.bootstrap_port, QUESTION)
    assert [reply.status for reply in replies] == [200, 200]


def test_a_bootstrap_port_that_is_taken_ends_the_start_with_a_hint(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        spec = server_spec("prefill", 0, checkpoint("gqa"), ServerOptions(), Ports(*free_ports(1), port))
        server = Server.start(spec, tmp_path / "log")
        try:
            with pytest.raises(ServerError, match="ended with status"):
                wait_ready([server], START_S, lambda _server: None)
        finally:
            server.stop()
    said = server.log.read_text()
    assert f"cannot listen at {HOST}:{port}" in said
    assert "--disaggregation-bootstrap-port" in said
