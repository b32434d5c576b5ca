"""Files under /dev/shm: what a dead process of ours left goes, everything else stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_pd_fabric.fabric import shared_memory


@pytest.fixture(scope="module")
def dead() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_names_are_unique_and_tell_the_process() -> None:
    names = {shared_memory.new_endpoint_name() for _ in range(1000)}
    assert len(names) == 1000
    assert {name.split(".")[2] for name in names} == {str(os.getpid())}
    assert max(map(len, names)) < 100, "the provider adds to it, and a file name has 255 bytes"


def test_endpoints_of_a_dead_process_are_removed(tmp_path: Path, dead: int) -> None:
    name = shared_memory.new_endpoint_name().replace(f".{os.getpid()}.", f".{dead}.")
    left = [tmp_path / f"{name}:0:{index}" for index in range(3)]
    for path in left:
        path.touch()
    assert sorted(shared_memory.remove_stale(tmp_path)) == left
    assert not any(tmp_path.iterdir())


def test_everything_else_stays(tmp_path: Path, dead: int) -> None:
    namespace = os.stat("/proc/self/ns/pid").st_ino
    names = [
        f"{shared_memory.new_endpoint_name()}:0:0",  # ours and alive
        f"pd_fabric.{namespace + 1}.{dead}.00ff00ff:0:0",  # of another container
        f"pd_fabric.{namespace}.x.00ff00ff:0:0",
        f"pd_fabric.{namespace}.{dead}",
        f"{dead}:0:0",  # other software that uses libfabric
        "sem.mp-123",
    ]
    for name in names:
        (tmp_path / name).touch()
    assert shared_memory.remove_stale(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_files_of_another_user_stay(tmp_path: Path, dead: int) -> None:
    name = shared_memory.new_endpoint_name().replace(f".{os.getpid()}.", f".{dead}.")
    path = tmp_path / f"{name}:65534:0"
    path.touch()
    os.chown(path, 65534, 65534)
    assert shared_memory.remove_stale(tmp_path) == []


def test_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    assert shared_memory.remove_stale(tmp_path / "none") == []
