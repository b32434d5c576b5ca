"""What a pointer is, as the CUDA driver knows it.

``Driver`` is the little that we need of it. ``CudaDriver`` asks the real one through cuda-python, which is
imported only where a CUDA driver is installed; everything that decides takes a ``Driver`` as an argument.
"""

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.memory.model import CudaMemory, HostMemory, Memory


class CudaError(FabricError):
    """A call of the CUDA driver failed; the message names the call and CUDA's reason."""


class Location(NamedTuple):
    """Where an address of a CUDA device lies."""

    device: int
    start: int  # of its allocation, or of its mapping
    nbytes: int
    mapped: bool  # by cuMemMap
    managed: bool  # moves between host and device


class Driver(Protocol):
    """What we ask the CUDA driver."""

    def locate(self, address: int) -> Location | None:
        """Where the address lies; None when it is memory of the host.

        Raises:
            CudaError: the driver does not answer.
        """

    def exports_dmabuf(self, device: int) -> bool:
        """Whether memory of the device can be had as a dmabuf.

        Raises:
            CudaError: the driver does not answer.
        """

    def export_dmabuf(self, device: int, address: int, nbytes: int) -> int:
        """A descriptor of a dmabuf of the range, which starts and ends with a page of the host. The caller
        closes it.

        Raises:
            CudaError: the driver refuses.
        """


class CudaDriver:
    """The CUDA driver of this machine.

    Args:
        api: the module ``cuda.bindings.driver``.
    """

    def __init__(self, api: Any) -> None:
        self._api = api

    def locate(self, address: int) -> Location | None:
        names = self._api.CUpointer_attribute
        wanted = [
            names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            names.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            names.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            names.CU_POINTER_ATTRIBUTE_IS_MANAGED,
        ]
        answer = self._call("cuPointerGetAttributes", len(wanted), wanted, address)
        kind, device, start, nbytes, managed = map(int, answer)
        if kind != int(self._api.CUmemorytype.CU_MEMORYTYPE_DEVICE):
            return None  # the driver does not know it, or allocated it on the host
        return Location(device, start, nbytes, self._is_mapped(address), bool(managed))

    def _is_mapped(self, address: int) -> bool:
        # Only memory that cuMemMap put there has an allocation handle.
        result, handle = self._api.cuMemRetainAllocationHandle(address)
        if int(result):
            return False
        self._call("cuMemRelease", handle)
        return True

    def exports_dmabuf(self, device: int) -> bool:
        attribute = self._api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
        return bool(self._call("cuDeviceGetAttribute", attribute, self._call("cuDeviceGet", device)))

    def export_dmabuf(self, device: int, address: int, nbytes: int) -> int:
        kind = self._api.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
        return self._in_context(
            device, lambda: int(self._call("cuMemGetHandleForAddressRange", address, nbytes, kind, 0))
        )

    def _in_context(self, device: int, ask: Callable[[], int]) -> int:
        """Some calls want a current context, which a thread of ours need not have."""
        handle = self._call("cuDeviceGet", device)
        self._call("cuCtxPushCurrent", self._call("cuDevicePrimaryCtxRetain", handle))
        try:
            return ask()
        finally:
            self._call("cuCtxPopCurrent")
            self._call("cuDevicePrimaryCtxRelease", handle)

    def _call(self, name: str, *arguments: Any) -> Any:
        result, *answer = getattr(self._api, name)(*arguments)
        if int(result):
            raise CudaError(f"{name}: {getattr(result, 'name', result)}")
        return answer[0] if answer else None


def find_driver() -> Driver | None:
    """The CUDA driver, or None on a machine without one, or without a device.

    Raises:
        FabricError: there is a driver and no cuda-python to ask it.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    try:
        api = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise FabricError(
            f"there is a CUDA driver, but no cuda-python to ask it with ({error}): "
            "pip install 'sglang-pd-fabric[cuda]'"
        ) from None
    return None if int(api.cuInit(0)[0]) else CudaDriver(api)


def describe(address: int, nbytes: int, driver: Driver | None) -> Memory:
    """What the ``nbytes`` at the address are.

    Args:
        driver: None where there is no CUDA.

    Raises:
        FabricError: they reach beyond their allocation, or are managed memory, which moves.
        CudaError: the driver does not answer.
    """
    found = driver.locate(address) if driver else None
    if found is None:
        return HostMemory(address, nbytes)
    if found.managed:
        raise FabricError(
            f"{nbytes} bytes at {address:#x} are CUDA managed memory, which moves between host and device: "
            "it cannot be registered; allocate it with cudaMalloc"
        )
    # Memory that is mapped consists of many mappings, one behind the other.
    if not found.mapped and address + nbytes > found.start + found.nbytes:
        raise FabricError(
            f"{nbytes} bytes at {address:#x} reach beyond their CUDA allocation, "
            f"{found.nbytes} bytes at {found.start:#x}"
        )
    return CudaMemory(address, nbytes, found.device, found.mapped)
