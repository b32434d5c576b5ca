"""CUDA memory on a real GPU: what the driver says of it, its dmabuf, and pages from and to it.

Not run yet: no machine of ours has a GPU. Each test is skipped with what is missing.
"""

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.fabric.memory import CudaMemory, HostMemory, describe, dmabuf, find_driver
from sglang_pd_fabric.fabric.memory.cuda import Driver
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.fabric.transfer import COPY

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="needs the extra 'sglang'")
if not torch.cuda.is_available():
    pytest.skip("there is no CUDA device", allow_module_level=True)

PAGES = 64
PAGE = 64 << 10
NBYTES = PAGES * PAGE
HANG = 60.0  # seconds: only ends a test that hangs


@pytest.fixture(scope="module")
def driver() -> Driver:
    found = find_driver()
    assert found is not None, "torch sees a device, cuda-python sees none"
    return found


def on_gpu(seed: int | None) -> Any:
    """A tensor of ``NBYTES`` bytes on the device: random, or zero."""
    if seed is None:
        return torch.zeros(NBYTES, dtype=torch.uint8, device="cuda")
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(0, 256, (NBYTES,), dtype=torch.uint8, device="cuda", generator=generator)


def test_the_driver_tells_a_tensor_on_the_device_from_one_on_the_host(driver: Driver) -> None:
    tensor = on_gpu(None)
    found = describe(tensor.data_ptr(), NBYTES, driver)
    assert isinstance(found, CudaMemory)
    assert (found.device, found.mapped) == (tensor.device.index, False)
    for host in (torch.zeros(NBYTES, dtype=torch.uint8), torch.zeros(NBYTES, dtype=torch.uint8).pin_memory()):
        assert describe(host.data_ptr(), NBYTES, driver) == HostMemory(host.data_ptr(), NBYTES)


def test_expandable_segments_are_seen_and_refused_for_efa(driver: Driver) -> None:
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        tensor = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
        found = describe(tensor.data_ptr(), tensor.nbytes, driver)
        assert isinstance(found, CudaMemory)
        assert found.mapped
        with pytest.raises(FabricError, match="expandable_segments:False"):
            dmabuf.refuse_mapped(PROFILES["efa"], found)
    finally:
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def test_a_tensor_can_be_had_as_a_dmabuf(driver: Driver) -> None:
    tensor = on_gpu(None)
    device = tensor.device.index
    if not driver.exports_dmabuf(device):
        pytest.skip("the CUDA driver exports no dmabuf (it needs the open kernel modules)")
    memory = CudaMemory(tensor.data_ptr() + 512, NBYTES - 512, device)
    with dmabuf.exported(memory, dmabuf.Way(True, ""), driver) as export:
        assert export.fd >= 0, export.why
        assert "dmabuf" in os.readlink(f"/proc/self/fd/{export.fd}")
        assert (tensor.data_ptr() + 512 - export.offset) % dmabuf.HOST_PAGE == 0


@pytest.fixture(params=["shm", "tcp", "efa", "verbs"])
def engines(request: pytest.FixtureRequest) -> Iterator[list[Engine]]:
    """Two engines for GPU memory over a provider that has it."""
    profile = PROFILES[request.param]
    opened: list[Engine] = []
    try:
        for _ in range(2):
            sources = ["127.0.0.1" if profile.binds_host else None]
            opened.append(Engine(open_library(), profile, sources=sources, gpu=True))
    except FabricError as error:
        for engine in opened:
            engine.close()
        pytest.skip(f"{request.param} takes no GPU memory here: {error}")
    yield opened
    for engine in opened:
        engine.close()


@pytest.mark.parametrize(("from_gpu", "to_gpu"), [(True, True), (True, False), (False, True)])
def test_pages_move_from_and_to_gpu_memory(
    engines: list[Engine], driver: Driver, from_gpu: bool, to_gpu: bool
) -> None:
    source, target = on_gpu(5), on_gpu(None)
    source = source if from_gpu else source.cpu()
    target = target if to_gpu else target.cpu()
    torch.cuda.synchronize()
    regions = [
        engine.register_all([describe(tensor.data_ptr(), NBYTES, driver)], owner=tensor, driver=driver)[0]
        for engine, tensor in zip(engines, (source, target), strict=True)
    ]
    print(f"{engines[0].profile.name}: by dmabuf: {[region.by_dmabuf for region in regions]}")
    writer, reader = engines
    if writer.profile.inserts_both_ways:
        reader.add_peer([nic.address for nic in writer.nics], [])
    peer = writer.add_peer([nic.address for nic in reader.nics], [regions[1]])
    table = np.zeros(1, COPY)
    table["src_stride"] = table["dst_stride"] = table["bytes"] = PAGE
    src = np.random.default_rng(1).permutation(PAGES).astype(np.uint32)
    dst = np.random.default_rng(2).permutation(PAGES).astype(np.uint32)
    transfer = writer.open_transfer(peer, 1, 1)
    transfer.submit(table, src, dst)
    limit = time.monotonic() + HANG
    while reader.slot_units(1) < PAGES or not transfer.status().quiet:
        assert transfer.status().error == 0
        assert time.monotonic() < limit, f"{reader.slot_units(1)} of {PAGES} pages came"
    want = np.empty((PAGES, PAGE), np.uint8)
    want[dst] = source.cpu().numpy().reshape(PAGES, PAGE)[src]
    assert np.array_equal(target.cpu().numpy().reshape(PAGES, PAGE), want)
    transfer.release()
