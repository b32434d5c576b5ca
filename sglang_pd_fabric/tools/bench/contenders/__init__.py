"""The contenders, one file each with ``make_target`` and ``make_writer``; this picks one, where it runs."""

from __future__ import annotations

import importlib
from typing import Any

from sglang_pd_fabric.tools.bench.contenders.base import Target, Writer
from sglang_pd_fabric.tools.bench.job import Job

MODULES = {
    "ours": "ours",
    "raw": "raw",
    "raw4": "raw",
    "memcpy": "memcpy",
    "nixl": "nixl_peer",
    "mooncake": "mooncake_peer",
}


def make_target(job: Job) -> Target:
    """The receiving side of the job's contender."""
    target: Target = _module(job).make_target(job)
    return target


def make_writer(job: Job, invitation: object) -> Writer:
    """The sending side, connected to what the target's ``invitation`` names."""
    writer: Writer = _module(job).make_writer(job, invitation)
    return writer


def _module(job: Job) -> Any:
    return importlib.import_module(f"{__name__}.{MODULES[job.engine]}")
