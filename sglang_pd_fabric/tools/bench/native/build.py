"""Builds the bench's native loops with cffi: ``sglang_pd_fabric.tools.bench._native``.

Like the core it needs libfabric's headers only. ``null.c`` exports libfabric's six entry points, so that
the file of this very module can be opened as a libfabric without a network (see ``own_cost.py``).
"""

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
SOURCES = ("forward.c", "null.c", "pages.c", "raw.c")


def builder() -> FFI:
    ffi = FFI()
    ffi.cdef((HERE / "bench.h").read_text().split("/* cdef begin */")[1].split("/* cdef end */")[0])
    ffi.set_source(
        "sglang_pd_fabric.tools.bench._native",
        '#include "bench.h"\n',
        sources=[str((HERE / name).relative_to(ROOT)) for name in SOURCES],
        depends=[str((HERE / "bench.h").relative_to(ROOT))],
        include_dirs=[str(HERE)],
        define_macros=[("_GNU_SOURCE", "1")],
        extra_compile_args=["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-fvisibility=hidden"],
        libraries=["dl"],
    )
    return ffi


ffibuilder = builder()
