"""The core's tests in C (tests/native), plain and under the sanitizers, with each libfabric there is."""

import os
from pathlib import Path

import pytest
from conftest import libraries, skip_old
from programs import output_of

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
PURE = ["slots", "plan", "queues"]
RUNS = [
    pytest.param(program, library, provider, id=f"{program}-{origin.split()[0]}-{provider}")
    for program in ("engine", "regions", "processes")
    for origin, library in libraries().items()
    for provider in ("tcp", "shm")
] + [
    pytest.param(program, library, "tcp", id=f"{program}-{origin.split()[0]}")
    for program in ("mapped", "fuzz")
    for origin, library in libraries().items()
]


@pytest.fixture(scope="module", params=SANITIZERS)
def flavour(request: pytest.FixtureRequest) -> str:
    """A flavour that is built. Without its sanitizer's runtime the linker says so here, and we fail."""
    name: str = request.param
    output_of(["make", "-C", str(NATIVE), f"FLAVOUR={name}", f"-j{os.cpu_count()}"])
    return name


@pytest.mark.parametrize("program", PURE)
def test_core_without_libfabric(flavour: str, program: str) -> None:
    output_of([str(BUILD / flavour / f"test_{program}")], **SANITIZERS[flavour])


@pytest.mark.parametrize(("program", "library", "provider"), RUNS)
def test_core_over_libfabric(flavour: str, program: str, library: str, provider: str) -> None:
    if program == "processes":
        skip_old(library, "it can crash when an endpoint closes in the middle of an arriving write")
    output_of(
        [str(BUILD / flavour / f"test_{program}")],
        LIBFABRIC=library,
        PROVIDER=provider,
        **SANITIZERS[flavour],
    )
