"""Real measurements of a shape scaled down: two fresh processes each, data checked by the bench itself."""

import subprocess
import sys

import pytest

from sglang_pd_fabric.tools.bench import child
from sglang_pd_fabric.tools.bench.job import Job, OwnCost, Reading
from sglang_pd_fabric.tools.bench.workload import Shape

SMALLEST = Shape("smallest", layers=3, pages=8, page_bytes=1024)


@pytest.fixture(scope="module")
def libfabric() -> str:
    """Its path, found in another process: pytest's own opens none."""
    code = "from sglang_pd_fabric.fabric.library import open_library; print(open_library().path)"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("engine", "transport"),
    [
        ("ours", "tcp"),
        ("ours", "shm"),
        ("ours", "mapped"),
        ("raw", "tcp"),
        ("raw", "shm"),
        ("raw4", "tcp"),
        ("memcpy", "auto"),
        ("memcpy", "mapped"),
    ],
)
def test_a_pair_moves_checked_pages(engine: str, transport: str, libfabric: str) -> None:
    job = Job(engine, transport, SMALLEST, repetitions=2, seed=1, libfabric=libfabric)
    readings = [Reading(*values) for values in child.run("pair", job)]
    assert len(readings) == 2
    assert all(reading.full_s > 0 and reading.quiet_s > 0 and reading.cpu_s > 0 for reading in readings)


@pytest.mark.parametrize("transport", ["tcp", "mapped"])
def test_own_cost_is_measured_over_the_null_provider(transport: str) -> None:
    job = Job("ours", transport, SMALLEST, repetitions=1, seed=1, libfabric="")
    cost = OwnCost.from_json(child.run("own_cost", job))
    assert cost.us_per_page > 0
    assert list(cost.submit) == [1, 64, 1024, 4096]
    assert 0 < cost.wake.p50 <= cost.wake.p99
    if transport == "mapped":
        assert cost.stages is None
    else:
        assert cost.stages is not None
        assert cost.stages.completing > 0
        assert cost.stages.counting > 0


def test_an_idle_engine_is_measured_after_it_was_at_work(libfabric: str) -> None:
    job = Job("ours", "tcp", SMALLEST, repetitions=1, seed=1, libfabric=libfabric)
    assert 0 < child.run("idle", job) < 100


def test_a_contender_that_fails_shows_the_end_of_its_log() -> None:
    job = Job("raw", "tcp", SMALLEST, repetitions=1, seed=1, libfabric="/nowhere/libfabric.so.1")
    with pytest.raises(
        child.ContenderError, match=r"(?s)raw over tcp failed at smallest:.*/nowhere/libfabric"
    ):
        child.run("pair", job)
