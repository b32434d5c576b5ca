"""Files under /dev/shm: what a dead process of ours left goes, everything else stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_pd_fabric.fabric import shared_memory
from sglang_pd_fabric.fabric.errors import FabricError


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


def test_an_address_leads_to_its_file_and_other_names_to_none(tmp_path: Path) -> None:
    name = f"{shared_memory.new_endpoint_name()}:0:0"
    for text in (f"fi_shm://{name}\0", f"fi_shm://{name}", f"{name}\0rest"):
        assert shared_memory.endpoint_file(text.encode(), tmp_path) == tmp_path / name
    for other in (b"fi_shm://4242:0:0\0", b"", b"\xff" * 200, b"pd_fabric./../../etc/passwd\0"):
        assert shared_memory.endpoint_file(other, tmp_path) is None


def test_a_peer_whose_endpoint_nobody_sees_here_is_refused_with_the_remedy(tmp_path: Path) -> None:
    address = f"fi_shm://{shared_memory.new_endpoint_name()}:0:0\0".encode()
    with pytest.raises(FabricError, match=r"runs in another container; .*--ipc=host"):
        shared_memory.require_visible([address], tmp_path)
    path = shared_memory.endpoint_file(address, tmp_path)
    assert path is not None
    path.touch()
    shared_memory.require_visible([address], tmp_path)


def test_reserving_takes_all_of_the_file_and_changes_no_byte(tmp_path: Path) -> None:
    address = f"fi_shm://{shared_memory.new_endpoint_name()}:0:0\0".encode()
    path = shared_memory.endpoint_file(address, tmp_path)
    assert path is not None
    path.write_bytes(b"header")
    os.truncate(path, 1 << 20)
    shared_memory.reserve([address], tmp_path)
    assert path.stat().st_blocks * 512 >= 1 << 20
    assert path.read_bytes() == b"header" + bytes((1 << 20) - 6)
