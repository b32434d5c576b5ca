"""Runs of bytes of a tensor are those that a reader of host memory finds; the device itself: tests/gpu."""

import numpy as np
import pytest

from sglang_pd_fabric.fabric.memory import HostMemory
from sglang_pd_fabric.integration.gpu_bytes import gather, gather_tensor

torch = pytest.importorskip("torch", reason="needs the extra 'sglang'")
BYTES = np.random.default_rng(1).integers(0, 256, 5000, np.uint8)


@pytest.mark.parametrize("nbytes", [1, 7, 4096, 5000])
def test_runs_of_a_tensor_are_the_bytes_of_its_memory(nbytes: int) -> None:
    offsets = np.random.default_rng(nbytes).integers(0, len(BYTES) - nbytes + 1, 20)
    want = np.stack([BYTES[offset : offset + nbytes] for offset in offsets])
    assert np.array_equal(gather_tensor(torch.from_numpy(BYTES), offsets, nbytes), want)
    assert np.array_equal(gather(HostMemory(BYTES.ctypes.data, len(BYTES)), offsets, nbytes), want)


@pytest.mark.parametrize("offset", [4901, 2**40])
def test_what_lies_outside_is_not_read(offset: int) -> None:
    with pytest.raises(IndexError):
        gather(HostMemory(BYTES.ctypes.data, len(BYTES)), np.array([offset]), 100)
    with pytest.raises(IndexError):
        gather_tensor(torch.from_numpy(BYTES), np.array([offset]), 100)
