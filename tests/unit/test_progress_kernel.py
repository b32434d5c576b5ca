"""The kernels of the progress word compile for the GPUs that SGLang serves. tests/gpu runs them."""

import pytest

from sglang_pd_fabric.integration import cuda_progress


@pytest.fixture(autouse=True)
def compiler() -> None:
    """Skips where there is no NVRTC: the module or the library behind it."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-python is not installed")
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        pytest.skip(f"no NVRTC: {error}")


@pytest.mark.parametrize("architecture", ["compute_80", "compute_90", "compute_100"])
def test_the_kernels_compile_without_a_gpu(architecture: str) -> None:
    ptx = cuda_progress.compile_ptx(architecture).decode()
    assert ".entry begin_forward" in ptx
    assert ".entry layer_done" in ptx
    # The word's store comes behind a fence that the whole system sees.
    assert ptx.index("membar.sys") < ptx.index("st.volatile")


def test_what_does_not_compile_is_an_error_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_progress, "SOURCE", "this is no CUDA")
    with pytest.raises(cuda_progress.CudaError, match=r"error:"):
        cuda_progress.compile_ptx("compute_90")
