"""Progress words of a GPU: a kernel of one thread stores into host memory that the I/O thread watches.

The kernels are launched from hooks on the model before its graphs are captured, so a replay runs them too,
where Python hooks are silent. The number of the forward pass comes from a word in device memory, set on the
same stream before the pass; 0, which is what warm-up, capture and idle batches find there, stores nothing.

The code is CUDA C, compiled by NVRTC when the model has been loaded, through cuda-python: nothing is compiled
at install. It has been compiled, but not yet run on a GPU (docs/verified.md).
"""

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sglang_pd_fabric.fabric.progress import STEP_BITS
from sglang_pd_fabric.integration.progress import Forward, layer_outputs

SOURCE = f"""
extern "C" __global__ void begin_forward(unsigned long long *number, unsigned long long forward) {{
    *number = forward;
}}

/* All writes of earlier kernels on the stream are in device memory when this kernel starts. The fence orders
 * them before the store for everybody who can see the word, the NIC included. The word only grows. */
extern "C" __global__ void layer_done(const unsigned long long *number, volatile unsigned long long *word,
                                      unsigned int layers) {{
    unsigned long long forward = *number;
    if (forward == 0)
        return;
    __threadfence_system();
    *word = forward << {STEP_BITS} | layers;
}}
"""
_ATTRIBUTE_MAJOR, _ATTRIBUTE_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_DEVICE_MAP = 2  # CU_MEMHOSTALLOC_DEVICEMAP


class CudaError(RuntimeError):
    """A call of the driver or of the run-time compiler failed; the message names it."""


def compile_ptx(architecture: str) -> bytes:
    """The kernels for a virtual architecture such as ``compute_90``. Needs NVRTC, but no GPU.

    Raises:
        CudaError: with the compiler's log.
    """
    from cuda.bindings import nvrtc

    program = _call(nvrtc.nvrtcCreateProgram, SOURCE.encode(), b"progress.cu", 0, [], [])
    options = [f"--gpu-architecture={architecture}".encode()]
    try:
        _call(nvrtc.nvrtcCompileProgram, program, len(options), options)
    except CudaError as error:
        log = bytes(_call(nvrtc.nvrtcGetProgramLogSize, program))
        _call(nvrtc.nvrtcGetProgramLog, program, log)
        raise CudaError(f"{error}: {log.decode(errors='replace')}") from None
    ptx = b" " * int(_call(nvrtc.nvrtcGetPTXSize, program))
    _call(nvrtc.nvrtcGetPTX, program, ptx)
    return ptx


class MappedWord:
    """A progress word in host memory that the GPU can store into: its address for each of the two."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.address = int(_call(driver.cuMemHostAlloc, 8, _DEVICE_MAP))
        ctypes.memset(self.address, 0, 8)
        self.device_address = int(_call(driver.cuMemHostGetDevicePointer, self.address, 0))


@functools.cache
def mapped_word() -> MappedWord:
    """The progress word of this process, for its model and for its engine; never freed."""
    return MappedWord()


class CudaLayerSignals:
    """Follows a model on the current GPU. To be made before any of the model's graphs is captured.

    Args:
        model: the loaded model.
    """

    def __init__(self, model: Any) -> None:
        import torch
        from cuda.bindings import driver

        torch.cuda.current_stream()  # the driver calls below need torch's context
        device = _call(driver.cuCtxGetDevice)
        major = _call(driver.cuDeviceGetAttribute, driver.CUdevice_attribute(_ATTRIBUTE_MAJOR), device)
        minor = _call(driver.cuDeviceGetAttribute, driver.CUdevice_attribute(_ATTRIBUTE_MINOR), device)
        self._module = _call(driver.cuModuleLoadData, compile_ptx(f"compute_{major}{minor}"))
        self._begin = _call(driver.cuModuleGetFunction, self._module, b"begin_forward")
        self._done = _call(driver.cuModuleGetFunction, self._module, b"layer_done")
        self._number = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._word = mapped_word().device_address
        for layers, module in enumerate(layer_outputs(model), 1):
            module.register_forward_hook(self._hook(layers))

    @contextmanager
    def following(self, forward: Forward) -> Iterator[None]:
        self._launch(self._begin, self._number.data_ptr(), np.uint64(forward.number))
        try:
            yield
        finally:
            self._launch(self._begin, self._number.data_ptr(), np.uint64(0))

    def ended(self, forward: Forward, scheduler: Any) -> None:
        """Behind all that the pass has launched, on the stream on which it was launched."""
        import torch

        stream = scheduler.forward_stream if scheduler.enable_overlap else torch.cuda.current_stream()
        with torch.cuda.stream(stream), self.following(forward.next):
            self._store(0)

    def _hook(self, layers: int) -> Callable[..., None]:
        return lambda *_module_inputs_and_output: self._store(layers)

    def _store(self, layers: int) -> None:
        self._launch(self._done, self._number.data_ptr(), self._word, np.uint32(layers))

    @staticmethod
    def _launch(kernel: Any, *arguments: Any) -> None:
        import torch
        from cuda.bindings import driver

        kinds = {int: ctypes.c_void_p, np.uint64: ctypes.c_uint64, np.uint32: ctypes.c_uint32}
        packed = (tuple(int(value) for value in arguments), tuple(kinds[type(value)] for value in arguments))
        stream = torch.cuda.current_stream().cuda_stream
        _call(driver.cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, packed, 0)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of cuda-python returns beside its status.

    Raises:
        CudaError: the status is not 0.
    """
    status, *results = function(*arguments)
    if int(status) != 0:
        raise CudaError(f"{function.__name__} failed with {status!r}")
    return results[0] if results else None
