"""Skips the folder where PyTorch sees no GPU."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
