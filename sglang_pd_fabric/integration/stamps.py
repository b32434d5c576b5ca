"""Time stamps of requests, the same for every transfer backend, by hooks that only a setting installs.

``SGLANG_PD_FABRIC_STAMPS=DIRECTORY`` makes each scheduler process write one JSON object a line to a file of
its own there: ``{"event": "computed", "room": 17, "ns": 123}``. ``ns`` is CLOCK_MONOTONIC, which all
processes of a machine share.
"""

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

# On prefill, for each forward pass of the request: it is over; SGLang takes its result.
# On decode: SGLang has seen that the request is complete, and may schedule it.
Event = Literal["computed", "taken", "transferred"]


class Stamp(NamedTuple):
    """Something that happened to a request."""

    event: Event
    room: int
    ns: int


def install(directory: Path) -> None:
    """Registers the hooks in a scheduler's process; SGLang applies them after all plugins have run."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sglang_pd_fabric.integration.hooks import scheduler_process

    if not scheduler_process():
        return
    writer = _Writer(directory)
    mixin = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin"
    for target, hook, kind in (
        ("sglang.srt.managers.scheduler.Scheduler.run_batch", writer.computed, HookType.AFTER),
        (f"{mixin}.process_batch_result_disagg_prefill", writer.taken, HookType.BEFORE),
        (
            "sglang.srt.disaggregation.decode.DecodeTransferQueue.pop_transferred",
            writer.transferred,
            HookType.AFTER,
        ),
    ):
        HookRegistry.register(target, hook, kind)


def read(directory: Path) -> list[Stamp]:
    """All stamps that processes have written to the directory so far, in no order between processes."""
    return [
        Stamp(**json.loads(line))
        for file in sorted(directory.glob("*.jsonl"))
        for line in file.read_text().splitlines(keepends=True)
        if line.endswith("\n")  # the last one may be half written
    ]


class _Writer:
    """The hooks. Each writes at once: a server that is killed loses nothing."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / f"{os.getpid()}.jsonl").open("ab", buffering=0)

    def computed(self, _result: Any, scheduler: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
        if getattr(scheduler, "disagg_prefill_bootstrap_queue", None) is not None:
            self._write("computed", batch.reqs)

    def taken(self, _scheduler: Any, batch: Any, *_args: Any, **_kwargs: Any) -> None:
        self._write("taken", batch.reqs)

    def transferred(self, requests: Any, *_args: Any, **_kwargs: Any) -> None:
        self._write("transferred", requests)

    def _write(self, event: Event, requests: Iterable[Any]) -> None:
        ns = time.monotonic_ns()
        for request in requests:
            stamp = Stamp(event, request.bootstrap_room, ns)
            self._file.write(json.dumps(stamp._asdict()).encode() + b"\n")
