"""The core's tests in C (tests/native), plain and under the sanitizers, with each libfabric there is."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest
from conftest import libraries, version_of
from programs import Command, make, side_by_side

from sglang_pd_fabric.fabric.profiles import PROFILES

NATIVE = Path(__file__).parents[1] / "native"
BUILD = NATIVE.parents[1] / "build" / "native"
SANITIZERS = {
    "plain": {},
    "address": {
        "ASAN_OPTIONS": "detect_leaks=1:fast_unwind_on_malloc=0",
        "LSAN_OPTIONS": f"print_suppressions=0:suppressions={NATIVE / 'leaks.supp'}",
    },
    "thread": {
        "TSAN_OPTIONS": f"halt_on_error=1:report_mutex_bugs=0:suppressions={NATIVE / 'races.supp'}",
    },
}
PURE = ["slots", "plan", "queues", "cut"]
RUNS = [
    pytest.param(program, library, provider, id=f"{program}-{origin.split()[0]}-{provider}")
    for program in ("engine", "regions", "processes")
    for origin, library in libraries().items()
    for provider in ("tcp", "shm")
    if version_of(library) >= PROFILES[provider].minimum
] + [
    pytest.param(program, library, "tcp", id=f"{program}-{origin.split()[0]}")
    for program in ("mapped", "fuzz")
    for origin, library in libraries().items()
]


@pytest.fixture(scope="module", params=SANITIZERS)
def results(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[str]]]:
    """Of the programs of a flavour. Without its sanitizer's runtime the linker says so here, and we fail."""
    flavour: str = request.param
    make(NATIVE, flavour)
    folder, environment = BUILD / flavour, SANITIZERS[flavour]
    commands: dict[str, Command] = {name: ([str(folder / f"test_{name}")], environment) for name in PURE}
    for run in RUNS:
        program, library, provider = map(str, run.values)
        if program != "processes" or version_of(library) >= (2, 0):
            over = {"LIBFABRIC": library, "PROVIDER": provider, **environment}
            commands[str(run.id)] = [str(folder / f"test_{program}")], over
    with side_by_side(commands) as running:
        yield running


@pytest.mark.parametrize("program", PURE)
def test_core_without_libfabric(results: Mapping[str, Future[str]], program: str) -> None:
    results[program].result()


@pytest.mark.parametrize("run", [run.id for run in RUNS])
def test_core_over_libfabric(results: Mapping[str, Future[str]], run: str) -> None:
    if run not in results:
        pytest.skip(
            "libfabric before 2.0 can crash when an endpoint closes in the middle of an arriving write"
        )
    results[run].result()
