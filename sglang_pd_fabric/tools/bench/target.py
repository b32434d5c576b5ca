"""The target's process of a measurement: spawned from the writer's, spoken to over a pipe, and its end."""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from sglang_pd_fabric.tools.bench.job import LIMIT_S, Job

Run = Callable[[Connection, Job], None]


@contextmanager
def target_process(run: Run, job: Job) -> Iterator[Connection]:
    """Starts ``run`` in a new process: the pipe to it. In the end it is closed and the process awaited."""
    context = mp.get_context("spawn")
    pipe, theirs = context.Pipe()
    target = context.Process(target=_serve, args=(run, theirs, job), daemon=True)
    target.start()
    theirs.close()
    try:
        yield pipe
    finally:
        pipe.close()
        target.join(LIMIT_S)


def hear(pipe: Connection) -> Any:
    """What the target says next.

    Raises:
        RuntimeError: it says nothing, or its process has ended.
    """
    try:
        if not pipe.poll(LIMIT_S):
            raise RuntimeError("the target's process does not answer")
        return pipe.recv()
    except EOFError:
        raise RuntimeError("the target's process ended") from None


def _serve(run: Run, pipe: Connection, job: Job) -> None:
    try:
        run(pipe, job)
    except EOFError:
        status = 0  # the writer has failed and says so itself
    except Exception:
        traceback.print_exc()
        status = 1
    else:
        status = 0
    sys.stderr.flush()
    os._exit(status)  # peers may crash in their exit handlers
