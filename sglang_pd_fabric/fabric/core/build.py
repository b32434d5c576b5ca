"""Builds the core with cffi: ``sglang_pd_fabric.fabric._core`` out of the C files beside this one.

Only libfabric's headers are needed (any version from 1.17 on; Debian and Ubuntu: ``libfabric-dev``).
The library itself is opened at run time, see ``fabric/library.py``.
"""

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).parent
SOURCES = (
    "cpus.c",
    "cut.c",
    "ending.c",
    "engine.c",
    "error.c",
    "io.c",
    "ledger.c",
    "library.c",
    "mapped.c",
    "nic.c",
    "paths.c",
    "peer.c",
    "post.c",
    "region.c",
    "removal.c",
    "renew.c",
    "slots.c",
    "trace.c",
    "transfer.c",
    "warm.c",
)
# Numbers of libfabric's that Python needs, taken from the headers at compile time.
CONSTANTS = (
    "FI_MR_LOCAL",
    "FI_MR_VIRT_ADDR",
    "FI_MR_ALLOCATED",
    "FI_MR_PROV_KEY",
    "FI_MR_HMEM",
    "FI_HMEM",
)


def declarations() -> str:
    """The part of api.h between its two marks, and the constants."""
    text = (HERE / "api.h").read_text()
    body = text.split("/* cdef begin */")[1].split("/* cdef end */")[0]
    return body + "".join(f"#define {name} ...\n" for name in CONSTANTS)


def builder() -> FFI:
    ffi = FFI()
    ffi.cdef(declarations())
    ffi.set_source(
        "sglang_pd_fabric.fabric._core",
        '#include <rdma/fi_domain.h>\n#include "api.h"\n',
        sources=[str((HERE / name).relative_to(HERE.parents[2])) for name in SOURCES],
        depends=[str(path.relative_to(HERE.parents[2])) for path in HERE.glob("*.h")],
        include_dirs=[str(HERE)],
        define_macros=[("_GNU_SOURCE", "1")],
        extra_compile_args=["-std=c11", "-O3", "-g", "-Wall", "-Wextra", "-fvisibility=hidden"],
        libraries=["dl", "pthread"],
    )
    return ffi


ffibuilder = builder()
