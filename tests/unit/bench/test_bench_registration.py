"""The registration bench: a small pool for real, its table, its progress line, and what it refuses."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_pd_fabric.fabric.registration import Progress
from sglang_pd_fabric.tools.bench.registration import PAGE, PROVIDERS, Pool, Record, Show, table

COMMAND = [sys.executable, "-m", "sglang_pd_fabric.tools.cli", "bench", "registration"]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_both_contenders_of_every_provider_are_measured(tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    done = bench("--gigabytes", "0.002", "--buffers", "7", "--rounds", "2", "--json", str(file))
    assert done.returncode == 0, done.stderr
    records = json.loads(file.read_text())
    assert {(record["engine"], record["transport"]) for record in records} == {
        (engine, provider) for engine in ("ours", "raw") for provider in PROVIDERS
    }
    assert all(record["seconds"] > 0 and record["buffers"] == 7 for record in records)
    assert all(record["gigabytes"] == pytest.approx(7 * 69 * 4096 / 1e9) for record in records)
    assert all(line.split()[0] in (*PROVIDERS, "provider", "0.00198") for line in done.stdout.splitlines())
    assert "tcp, round 2 of 2" in done.stderr


LOCK = """
from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.tools.bench.registration import PAGE, Pool, profile_and_library

profile, library = profile_and_library("pin", open_library())
engine = Engine(library, profile)
pools = [Pool(pages * PAGE, buffers) for pages, buffers in ((32, 4), (8, 2), (12, 3))]
for pool in pools:
    try:
        engine.register_all(pool.memories)
        print("registered")
    except FabricError as error:
        print(error)
"""


def test_a_kernel_that_locks_no_more_is_explained() -> None:
    """The provider ``pin`` really locks, here against a limit of 64 KiB and without the right to pass it.

    128 KiB can never be locked; 32 KiB can; 48 KiB more are refused by the kernel.
    """
    limited = 'ulimit -l 64 && exec "$@"'
    drop = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "--"]
    command = [*drop, "bash", "-c", limited, "-", sys.executable, "-c", LOCK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    too_large, fits, refused = done.stdout.splitlines()
    assert fits == "registered"
    assert too_large.startswith(
        "the pool has 128.0 KiB, the NIC locks all of it, and locked memory is limited"
    )
    assert refused.startswith("buffer 2 of 3 was not registered, so none is: fi_mr_reg of 16384 bytes at 0x")
    for text in (too_large, refused):
        assert "64.0 KiB (RLIMIT_MEMLOCK)" in text
        assert "ulimit -l unlimited" in text


@pytest.mark.parametrize("wrong", [["--providers", "efa"], ["--gigabytes", "0"], ["--rounds", "-1"]])
def test_what_cannot_be_measured_is_refused(wrong: list[str]) -> None:
    done = bench(*wrong)
    assert done.returncode == 2
    assert wrong[1].lstrip("-") in done.stderr


def test_a_pool_has_whole_pages_side_by_side() -> None:
    pool = Pool(10 * PAGE + 5, 3)
    assert [memory.nbytes for memory in pool.memories] == [3 * PAGE] * 3
    assert pool.memories[1].address == pool.memories[0].address + 3 * PAGE
    assert pool.nbytes == 9 * PAGE


def test_the_table_says_what_we_cost_more() -> None:
    records = [Record("raw", "tcp", 1.0, 2, 0.5, 2.0), Record("ours", "tcp", 1.0, 2, 0.75, 1.3)]
    assert table(records).splitlines()[1].split() == ["tcp", "0.500000", "0.750000", "1.500", "250000"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_a_line_a_round_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        show = Show(stream)
        show.begin("tcp, round 1 of 5")
        show.progress(Progress(10**9, 2 * 10**9, 1.5))
        show.end()
    assert "tcp, round 1 of 5 [" + "#" * 15 + " " * 15 + "] 1.0 of 2.0 GB in 1.50 s" in terminal.getvalue()
    assert terminal.getvalue().startswith("\r")
    assert file.getvalue() == "tcp, round 1 of 5\n"
