"""The GPU of a rank, by the address under which everybody knows it."""


def gpu_address(number: int) -> str:
    """PCI address of the GPU that this process sees under a number (after ``CUDA_VISIBLE_DEVICES``).

    Of a MIG instance it is that of the whole GPU.

    Raises:
        RuntimeError: the CUDA driver does not answer.
    """
    from cuda.bindings import driver

    code, *_ = driver.cuInit(0)
    code, device = driver.cuDeviceGet(number) if not code.value else (code, None)
    code, text = driver.cuDeviceGetPCIBusId(32, device) if not code.value else (code, b"")
    if code.value:
        raise RuntimeError(f"the CUDA driver knows no PCI address of GPU {number}: {code.name}")
    return bytes(text).split(b"\0")[0].decode()
