"""Memory that an engine registers: what a pointer means, and how a NIC gets at it.

``model`` says what memory there is, ``cuda`` asks the CUDA driver about pointers, ``dmabuf`` decides how a
NIC is given memory of a GPU, ``locked`` knows how much the process may lock. ``fabric/registration.py``
registers it.
"""

from sglang_pd_fabric.fabric.memory.cuda import describe, find_driver
from sglang_pd_fabric.fabric.memory.model import CudaMemory, HostMemory, Memory

__all__ = ["CudaMemory", "HostMemory", "Memory", "describe", "find_driver"]
