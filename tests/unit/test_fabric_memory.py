"""What a pointer is, how a NIC is given memory of a GPU, and what is said when the kernel locks no more.

The CUDA driver is the one thing that is not real here: there is no GPU on the machines that run this.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.memory import CudaMemory, HostMemory, describe, dmabuf, locked
from sglang_pd_fabric.fabric.memory.cuda import CudaDriver, CudaError, Location
from sglang_pd_fabric.fabric.memory.locked import UNLIMITED, LockLimit
from sglang_pd_fabric.fabric.profiles import PROFILES

GIB = 1 << 30
BASE = 0x7F0000000000


@dataclass
class ScriptedDriver:
    """One allocation of device 3; dmabufs are pipes."""

    allocation: Location = field(default_factory=lambda: Location(3, BASE, GIB, mapped=False, managed=False))
    has_dmabuf: bool = True
    refusal: str = ""
    exports: list[tuple[int, int, int]] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)

    def locate(self, address: int) -> Location | None:
        inside = self.allocation.start <= address < self.allocation.start + self.allocation.nbytes
        return self.allocation if inside else None

    def exports_dmabuf(self, device: int) -> bool:
        assert device == self.allocation.device
        return self.has_dmabuf

    def export_dmabuf(self, device: int, address: int, nbytes: int) -> int:
        if self.refusal:
            raise CudaError(self.refusal)
        self.exports.append((device, address, nbytes))
        read, write = os.pipe()
        os.close(write)
        self.fds.append(read)
        return read


def is_open(fd: int) -> bool:
    return Path(f"/proc/self/fd/{fd}").exists()


def test_without_a_driver_all_memory_is_of_the_host() -> None:
    assert describe(BASE, 10, None) == HostMemory(BASE, 10)


def test_the_driver_tells_memory_of_the_host_from_that_of_a_device() -> None:
    driver = ScriptedDriver()
    assert describe(BASE - 1, 10, driver) == HostMemory(BASE - 1, 10)
    assert describe(BASE + 1, 10, driver) == CudaMemory(BASE + 1, 10, 3)
    assert describe(BASE, GIB, driver) == CudaMemory(BASE, GIB, 3)
    mapped = ScriptedDriver(Location(3, BASE, 2 << 20, mapped=True, managed=False))
    assert describe(BASE, GIB, mapped) == CudaMemory(BASE, GIB, 3, mapped=True), "of many mappings"


def test_what_no_nic_can_register_is_refused() -> None:
    with pytest.raises(FabricError, match="reach beyond their CUDA allocation, 1073741824 bytes"):
        describe(BASE + 1, GIB, ScriptedDriver())
    managed = ScriptedDriver(Location(3, BASE, GIB, mapped=False, managed=True))
    with pytest.raises(FabricError, match=r"managed memory.*cudaMalloc"):
        describe(BASE, 10, managed)


@given(st.integers(1, 2**48), st.integers(1, 2**40), st.sampled_from([4096, 65536]))
def test_a_page_range_is_the_smallest_that_holds_the_bytes(address: int, nbytes: int, page: int) -> None:
    pages = dmabuf.page_range(address, nbytes, page)
    assert pages.start % page == pages.nbytes % page == 0
    assert pages.start + pages.offset == address
    assert 0 <= pages.offset < page
    assert 0 <= pages.start + pages.nbytes - (address + nbytes) < page


@pytest.mark.parametrize(
    ("name", "version", "has_dmabuf", "wanted", "why"),
    [
        ("efa", (2, 5), True, True, "exports it"),
        ("efa-direct", (2, 5), True, True, "exports it"),
        ("verbs", (1, 20), True, True, "exports it"),
        ("efa", (1, 18), True, False, "interface 1.18 has none"),
        ("verbs", (1, 17), True, False, "interface 1.17 has none"),
        ("efa", (2, 5), False, False, "exports none of device 3"),
        ("shm", (2, 5), True, False, "no NIC"),
        ("tcp", (2, 5), True, False, "no NIC"),
    ],
)
def test_a_dmabuf_is_tried_where_all_three_can(
    name: str, version: tuple[int, int], has_dmabuf: bool, wanted: bool, why: str
) -> None:
    way = dmabuf.choose(PROFILES[name], version, 3, ScriptedDriver(has_dmabuf=has_dmabuf))
    assert way.dmabuf == wanted
    assert why in way.why


def test_a_dmabuf_is_of_whole_pages_and_closed_after_use() -> None:
    driver = ScriptedDriver()
    memory = CudaMemory(BASE + 512, 4096, 3)
    with dmabuf.exported(memory, dmabuf.Way(True, ""), driver) as export:
        assert driver.exports == [(3, BASE, 8192)]
        assert (export.fd, export.offset) == (driver.fds[0], 512)
        assert is_open(export.fd)
    assert not is_open(driver.fds[0])
    with pytest.raises(KeyError), dmabuf.exported(memory, dmabuf.Way(True, ""), driver):
        raise KeyError
    assert not is_open(driver.fds[1])


def test_a_refused_export_leaves_the_address_and_its_reason() -> None:
    driver = ScriptedDriver(refusal="cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED")
    memory = CudaMemory(BASE, 4096, 3)
    with dmabuf.exported(memory, dmabuf.Way(True, ""), driver) as export:
        assert export.fd == -1
    told = dmabuf.explain(memory, export)
    assert "no dmabuf was tried: cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED" in told
    assert "modprobe nvidia_peermem" in told
    assert "expandable_segments" not in told
    assert "expandable_segments:False" in dmabuf.explain(CudaMemory(BASE, 1, 3, mapped=True), export)


@pytest.mark.parametrize("name", PROFILES)
def test_mapped_memory_is_refused_before_efa_would(name: str) -> None:
    profile = PROFILES[name]
    dmabuf.refuse_mapped(profile, CudaMemory(BASE, 4096, 3))
    mapped = CudaMemory(BASE, 4096, 3, mapped=True)
    if not name.startswith("efa"):
        dmabuf.refuse_mapped(profile, mapped)
        return
    with pytest.raises(FabricError) as refusal:
        dmabuf.refuse_mapped(profile, mapped)
    for words in ("CUDA device 3", name, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"):
        assert words in str(refusal.value)


# -- locked memory ---------------------------------------------------------------------------------------

LIMIT = LockLimit(8 << 20, exempt=False)


def test_a_pool_that_cannot_be_locked_is_refused_with_both_sizes() -> None:
    locked.require(LIMIT, 8 << 20, 1)
    with pytest.raises(FabricError) as refusal:
        locked.require(LIMIT, 10 * GIB, 1)
    for words in (
        "10.0 GiB",
        "8.0 MiB",
        "ulimit -l unlimited",
        "LimitMEMLOCK=infinity",
        "--ulimit memlock=-1",
    ):
        assert words in str(refusal.value)


def test_each_nic_locks_the_pool_by_itself() -> None:
    with pytest.raises(FabricError, match=r"4 NICs lock 8\.0 MiB of it"):
        locked.require(LockLimit((8 << 20) - 1, exempt=False), 2 << 20, 4)


def test_who_may_lock_anything_is_not_refused() -> None:
    locked.require(LockLimit(8 << 20, exempt=True), 10 * GIB, 4)
    locked.require(LockLimit(UNLIMITED, exempt=False), 10 * GIB, 4)


@pytest.mark.parametrize("code", [-errno.ENOMEM, -errno.EPERM, -errno.EAGAIN])
def test_a_refusal_that_the_limit_may_explain_names_it(code: int) -> None:
    told = locked.explain(LIMIT, code, 10 * GIB, 2)
    for words in ("10.0 GiB", "20.0 GiB", "8.0 MiB", "may be the reason", "ulimit -l unlimited"):
        assert words in told


@pytest.mark.parametrize(
    ("limit", "code", "nbytes"),
    [
        (LIMIT, -errno.EINVAL, GIB),
        (LockLimit(UNLIMITED, exempt=False), -errno.ENOMEM, GIB),
        (LIMIT, -errno.ENOMEM, 0),  # all of it is on a GPU
    ],
)
def test_a_refusal_that_has_other_reasons_does_not(limit: LockLimit, code: int, nbytes: int) -> None:
    assert locked.explain(limit, code, nbytes, 1) == ""


@pytest.mark.parametrize(("mask", "exempt"), [("000001fffeffffff", True), ("00000000a80425fb", False)])
def test_the_capability_to_lock_is_read_from_the_kernel(tmp_path: Path, mask: str, exempt: bool) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"Name:\tx\nCapPrm:\t{'f' * 16}\nCapEff:\t{mask}\n")
    assert LockLimit.read(tmp_path).exempt == exempt
    assert not LockLimit.read(tmp_path / "nothing").exempt


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB")])
def test_sizes_are_for_people(nbytes: int, text: str) -> None:
    assert locked.size_text(nbytes) == text


# -- the driver itself, over a recorded cuda-python --------------------------------------------------------


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


@pytest.fixture
def recorded() -> Any:
    """``cuda.bindings.driver``: its real names and enumerations, with scripted answers."""
    real = pytest.importorskip("cuda.bindings.driver", reason="needs the extra 'cuda'")
    calls: list[tuple[Any, ...]] = []
    api = SimpleNamespace(calls=calls, answers={}, real=real)
    for name in ("CUpointer_attribute", "CUmemorytype", "CUdevice_attribute", "CUmemRangeHandleType"):
        setattr(api, name, getattr(real, name))

    def function(name: str) -> Callable[..., tuple[Any, ...]]:
        assert callable(getattr(real, name)), "cuda-python has it"

        def call(*arguments: Any) -> tuple[Any, ...]:
            calls.append((name, *arguments))
            answer: tuple[Any, ...] = api.answers.get(name, (Result.CUDA_SUCCESS, 0))
            return answer

        return call

    for name in (
        "cuPointerGetAttributes",
        "cuMemRetainAllocationHandle",
        "cuMemRelease",
        "cuDeviceGet",
        "cuDeviceGetAttribute",
        "cuMemGetHandleForAddressRange",
        "cuDevicePrimaryCtxRetain",
        "cuDevicePrimaryCtxRelease",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
    ):
        setattr(api, name, function(name))
    return api


REFUSED = (Result.CUDA_ERROR_INVALID_VALUE, None)


def test_pointer_attributes_become_a_location(recorded: Any) -> None:
    driver = CudaDriver(recorded)
    recorded.answers["cuPointerGetAttributes"] = (Result.CUDA_SUCCESS, [2, 3, BASE, GIB, 0])
    assert driver.locate(BASE + 5) == Location(3, BASE, GIB, mapped=True, managed=False)
    assert ("cuMemRelease", 0) in recorded.calls
    recorded.answers["cuMemRetainAllocationHandle"] = REFUSED
    assert driver.locate(BASE + 5) == Location(3, BASE, GIB, mapped=False, managed=False)
    for kind in (0, 1):  # unknown to the driver, or allocated by it on the host
        recorded.answers["cuPointerGetAttributes"] = (Result.CUDA_SUCCESS, [kind, -2, 0, 0, 0])
        assert driver.locate(BASE) is None
    recorded.answers["cuPointerGetAttributes"] = REFUSED
    with pytest.raises(CudaError, match="cuPointerGetAttributes: CUDA_ERROR_INVALID_VALUE"):
        driver.locate(BASE)


def test_an_export_has_a_context_and_gives_it_back(recorded: Any) -> None:
    driver = CudaDriver(recorded)
    recorded.answers["cuMemGetHandleForAddressRange"] = (Result.CUDA_SUCCESS, 42)
    assert driver.export_dmabuf(3, BASE, 8192) == 42
    recorded.answers["cuMemGetHandleForAddressRange"] = REFUSED
    with pytest.raises(CudaError, match="cuMemGetHandleForAddressRange"):
        driver.export_dmabuf(3, BASE, 8192)
    names = [name for name, *_ in recorded.calls]
    assert names.count("cuCtxPushCurrent") == names.count("cuCtxPopCurrent") == 2
    assert names.count("cuDevicePrimaryCtxRetain") == names.count("cuDevicePrimaryCtxRelease") == 2
    kind = recorded.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
    assert ("cuMemGetHandleForAddressRange", BASE, 8192, kind, 0) in recorded.calls


def test_a_device_without_dmabuf_says_so(recorded: Any) -> None:
    assert not CudaDriver(recorded).exports_dmabuf(0)
    recorded.answers["cuDeviceGetAttribute"] = (Result.CUDA_SUCCESS, 1)
    assert CudaDriver(recorded).exports_dmabuf(0)
