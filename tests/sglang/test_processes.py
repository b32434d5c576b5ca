"""Children of the test and demo clusters end when they should, and say why when they should not have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from sglang_pd_fabric.tools.demo.processes import Server, ServerError, Spec, wait_ready

# A server that never answers, with a child of its own that ignores polite signals.
STUBBORN = (
    "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); subprocess.run([sys.executable, '-c', 'import signal; signal.pause()'])"
)


def start(code: str, log: Path) -> Server:
    spec = Spec("child", (sys.executable, "-c", code), {}, "http://127.0.0.1:9")
    return Server.start(spec, log)


def test_an_early_end_is_reported_at_once_with_the_end_of_the_log(tmp_path: Path) -> None:
    server = start("import sys; print('no such model'); sys.exit(7)", tmp_path / "log")
    with pytest.raises(ServerError, match=r"status 7(.|\n)*no such model"):
        wait_ready([server], 60, lambda _server: None)


def test_a_server_that_never_answers_is_given_up(tmp_path: Path) -> None:
    server = start("import signal; signal.pause()", tmp_path / "log")
    with pytest.raises(ServerError, match="not ready after 1 s"):
        wait_ready([server], 1, lambda _server: None)
    server.stop()


@pytest.mark.parametrize("frozen", [False, True])
def test_stop_leaves_no_descendant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: bool) -> None:
    monkeypatch.setattr("sglang_pd_fabric.tools.demo.processes.TERM_SECONDS", 0.5)
    server = start(STUBBORN, tmp_path / "log")
    family = grown_family(server.pid)
    if frozen:
        server.signal(signal.SIGSTOP)
    server.stop()
    gone, alive = psutil.wait_procs(family, timeout=5)
    assert len(gone) == 2
    assert not alive


def test_kill_leaves_no_descendant(tmp_path: Path) -> None:
    server = start(STUBBORN, tmp_path / "log")
    family = grown_family(server.pid)
    assert sorted(server.family()) == sorted(process.pid for process in family)
    server.kill()
    assert not psutil.wait_procs(family, timeout=10)[1]
    assert not server.family()


def test_a_killed_parent_takes_its_servers_along(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    code = (
        "import sys, pathlib, signal; from sglang_pd_fabric.tools.demo.processes import Server, Spec;"
        "spec = Spec('child', (sys.executable, '-c', 'import signal; signal.pause()'), {}, 'http://x');"
        f"print(Server.start(spec, pathlib.Path({log!r})).pid, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert not psutil.wait_procs([child], timeout=10)[1]


def grown_family(pid: int) -> list[psutil.Process]:
    """Return a process and its child as soon as there is one."""
    process = psutil.Process(pid)
    while not (children := process.children(recursive=True)):
        assert process.is_running()
    return [process, *children]
