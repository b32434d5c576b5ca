"""Only names the native modules; everything else is in pyproject.toml (which cannot name a cffi module)."""

from setuptools import setup

setup(
    cffi_modules=[
        "sglang_pd_fabric/fabric/core/build.py:ffibuilder",
        "sglang_pd_fabric/tools/bench/native/build.py:ffibuilder",
    ]
)
