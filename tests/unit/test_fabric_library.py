"""Which libfabric is opened, and what is said when none can be. Each case has a process of its own."""

import ctypes.util
import json
import subprocess
import sys

import pytest

from sglang_pd_fabric.fabric import library

PRELUDE = """
import ctypes, json, sys, threading
from sglang_pd_fabric.fabric import library
from sglang_pd_fabric.fabric.errors import LibfabricNotFoundError
def show(*values): print(json.dumps(values))
def message(explicit=None):
    try:
        library.open_library(explicit)
    except LibfabricNotFoundError as error:
        return str(error)
"""
NOWHERE = "/nowhere/libfabric.so.1"


def run(code: str) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown: list[object] = json.loads(done.stdout)
    return shown


def installed() -> list[str]:
    shown = run("import os\nshow(*[c.path for c in library.candidates(None) if os.path.exists(c.path)])")
    return [str(path) for path in shown]


def test_the_error_names_every_place_with_its_reason_and_the_ways_out() -> None:
    code = f"""
library.SONAME = 'libfabric-of-nowhere.so.1'  # so that nothing on this machine can be found
show(message(), message({NOWHERE!r}))
"""
    everywhere, explicit = map(str, run(code))
    for place in library.EFA_INSTALLER:
        assert f"{place}/libfabric-of-nowhere.so.1 (EFA installer): cannot open" in everywhere
    assert "libfabric-of-nowhere.so.1 (system): cannot open" in everywhere
    assert f"{NOWHERE} (SGLANG_PD_FABRIC_LIBFABRIC): cannot open" in explicit
    assert "system)" not in explicit, "an explicit choice is not second-guessed"
    for text in (everywhere, explicit):
        assert "libfabric1" in text
        assert "sglang-pd-fabric[libfabric]" in text
        assert "SGLANG_PD_FABRIC_LIBFABRIC=" in text


def test_a_library_that_is_no_libfabric_is_named_as_such() -> None:
    (text,) = run("show(message('libc.so.6'))")
    assert "libc.so.6 is not a libfabric: it has no fi_getinfo" in str(text)


def test_the_order_is_efa_installer_then_wheel_then_system() -> None:
    origins = [str(origin) for origin in run("show(*[c.origin for c in library.candidates(None)])")]
    assert origins[:2] == ["EFA installer", "EFA installer"]
    assert origins[-1] == "system"
    assert all(origin.startswith("wheel ") for origin in origins[2:-1])


def test_an_explicit_path_is_the_only_candidate() -> None:
    assert run("show(*library.candidates('/x/libfabric.so.1'))") == [
        ["/x/libfabric.so.1", "SGLANG_PD_FABRIC_LIBFABRIC"]
    ]


def test_every_installed_libfabric_opens_and_tells_version_and_providers() -> None:
    paths = installed() + (["libfabric.so.1"] if ctypes.util.find_library("fabric") else [])
    assert paths, "the tests need a libfabric"
    for path in paths:
        code = f"it = library.open_library({path!r})\nshow(it.version, [p.provider for p in it.providers()])"
        version, providers = run(code)
        assert isinstance(version, list)
        assert isinstance(providers, list)
        assert version >= [1, 17]
        assert any(name == "shm" for name in providers)
        assert any(name.startswith("tcp") for name in providers)


def test_a_libfabric_that_is_already_loaded_wins_over_an_explicit_one() -> None:
    if not ctypes.util.find_library("fabric"):
        pytest.skip("needs the system's libfabric")
    path, origin, loaded = run(
        f"""
ctypes.CDLL('libfabric.so.1')
loaded = library._loaded()
it = library.open_library({NOWHERE!r})
show(it.path, it.origin, loaded)
"""
    )
    assert loaded == [path]
    assert origin == "already loaded in this process"


def test_all_threads_get_the_same_library() -> None:
    assert run(
        """
got = []
threads = [threading.Thread(target=lambda: got.append(library.open_library())) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
show(len(got), len(set(map(id, got))))
"""
    ) == [16, 1]


def test_the_core_was_compiled_with_headers_of_1_17_or_newer() -> None:
    assert library.header_version() >= (1, 17)
