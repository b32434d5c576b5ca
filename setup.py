"""Only names the native core; everything else is in pyproject.toml (which cannot name a cffi module)."""

from setuptools import setup

setup(cffi_modules=["sglang_pd_fabric/fabric/core/build.py:ffibuilder"])
