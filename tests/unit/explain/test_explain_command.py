"""The command against HTTP servers that show recorded pages."""

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_pd_fabric.tools import cli
from tests.unit.explain.recordings import text


@contextmanager
def showing(*pages: str) -> Iterator[str]:
    """A server that shows these pages in turn, the last one for ever; without any: HTTP 404."""
    turns = itertools.chain(pages, itertools.repeat(pages[-1])) if pages else iter(())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = next(turns, None) if self.path == "/metrics" else None
            self.send_response(200 if page else 404)
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *_unused: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def urls() -> Iterator[dict[str, str]]:
    with ExitStack() as running:
        yield {
            role: running.enter_context(showing(*(text(situation, reading, role) for reading in (1, 2))))
            for situation, role in (("steady", "prefill"), ("steady", "decode"), ("long", "ordinary"))
        } | {"router": running.enter_context(showing())}


def explain(*arguments: str) -> int:
    return cli.main(["explain", "--seconds", "0.05", *arguments])


def test_the_verdict_comes_first_and_the_numbers_below(
    urls: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain("--prefill", urls["prefill"], "--decode", urls["decode"], "--router", urls["router"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("NOTHING WRONG")
    assert any(line.startswith("time to first token: 116.6 ms, mean of 102 streams") for line in lines)
    assert any("cannot tell: no smg_router_ttft_seconds" in line for line in lines)


def test_json_has_the_same(urls: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert explain("--ordinary", urls["ordinary"], "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert "interrupted" in [verdict["kind"] for verdict in data["verdicts"]]
    assert data["figures"]["answers"]["prompt_tokens"] == 32092
    assert {phase["name"] for phase in data["first_token"]} >= {"queue", "prefill"}


@pytest.mark.parametrize(
    "arguments", [[], ["--prefill", "http://a"], ["--ordinary", "http://a", "--decode", "http://b"]]
)
def test_servers_that_make_no_deployment_are_refused(
    arguments: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(*arguments) == 1
    assert "give --prefill and --decode" in capsys.readouterr().err


def test_a_server_without_metrics_is_named(urls: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert explain("--prefill", urls["router"], "--decode", urls["decode"]) == 1
    assert f"{urls['router']}/metrics: HTTP 404; start the server with --enable-metrics" in (
        capsys.readouterr().err
    )


def test_a_server_that_is_not_there_or_shows_something_else_is_named(
    urls: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain("--prefill", urls["prefill"], "--decode", "http://127.0.0.1:1") == 1
    assert "http://127.0.0.1:1/metrics" in capsys.readouterr().err
    with showing("<html>hello</html>") as other:
        assert explain("--prefill", urls["prefill"], "--decode", other) == 1
    assert f"{other}/metrics" in capsys.readouterr().err
    assert explain("--prefill", "no url", "--decode", urls["decode"]) == 1


def test_only_positive_times_are_taken() -> None:
    with pytest.raises(SystemExit):
        explain("--ordinary", "http://a", "--seconds", "-1")
    with pytest.raises(SystemExit):
        explain("--ordinary", "http://a", "--ttft-ms", "nan")
