"""One measurement: a writer's and a target's process, a warm-up, the timed repetitions, a check of the data.

Runs inside the writer's process (``child.py`` starts it); the target's is spawned from here. Each side
counts its own CPU time; the clock is CLOCK_MONOTONIC, which all processes share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from sglang_pd_fabric.tools.bench.contenders import make_target, make_writer
from sglang_pd_fabric.tools.bench.contenders.base import Writer
from sglang_pd_fabric.tools.bench.job import Job, Reading
from sglang_pd_fabric.tools.bench.target import hear, target_process
from sglang_pd_fabric.tools.bench.workload import draw, wrong_pages

IDLE_S = 3.0
IO_THREAD = "pd_fabric_io"  # its name in /proc, see core/io.c


class Arrival(NamedTuple):
    """What the target says of a repetition."""

    full_ns: int | None
    cpu_s: float


def measure(job: Job) -> list[Reading]:
    """Runs the job.

    Raises:
        RuntimeError: a page does not hold what it should, or the target's process failed.
    """
    with _pair(job) as (pipe, writer):
        return [_repeat(pipe, writer, job, number) for number in range(job.repetitions + 1)][1:]


def measure_idle(job: Job) -> float:
    """What the writer's I/O thread uses when nothing moves, after the job's transfers: percent of a core."""
    with _pair(job) as (pipe, writer):
        for number in range(job.repetitions + 1):
            _repeat(pipe, writer, job, number)
        before, start = _io_thread_ns(), time.monotonic_ns()
        time.sleep(IDLE_S)
        return (_io_thread_ns() - before) / (time.monotonic_ns() - start) * 100


def _io_thread_ns() -> int:
    """CPU time of our I/O thread in this process."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == IO_THREAD:
            return int((task / "schedstat").read_text().split()[0])
    raise RuntimeError(f"no thread {IO_THREAD} runs here")


@contextmanager
def _pair(job: Job) -> Iterator[tuple[Connection, Writer]]:
    """Both sides; in the end the target's pages are compared with what the last repetition sent."""
    with target_process(_target, job) as pipe:
        writer = make_writer(job, hear(pipe))
        yield pipe, writer
        pipe.send(None)
        last = draw(job.shape, job.seed, job.repetitions)
        wrong = hear(pipe) if writer.landed is None else wrong_pages(job.shape, writer.landed, last)
        if wrong:
            raise RuntimeError(f"{wrong} of {job.shape.writes} pages hold wrong data")
        writer.close()
        pipe.send(None)


def _repeat(pipe: Connection, writer: Writer, job: Job, number: int) -> Reading:
    prepared = writer.prepare(draw(job.shape, job.seed, number))
    pipe.send(number)
    token = hear(pipe)
    cpu, start = time.process_time(), time.monotonic_ns()
    writer.write(prepared, number, token)
    quiet = time.monotonic_ns()
    writer.settle()
    cpu = time.process_time() - cpu
    pipe.send(None)
    arrival: Arrival = hear(pipe)
    full = quiet if arrival.full_ns is None else arrival.full_ns
    return Reading((full - start) / 1e9, (quiet - start) / 1e9, cpu + arrival.cpu_s)


def _target(pipe: Connection, job: Job) -> None:
    target = make_target(job)
    pipe.send(target.invitation())
    while (number := pipe.recv()) is not None:
        token = target.arm(number)
        cpu = time.process_time()
        pipe.send(token)
        full = target.wait()
        pipe.recv()
        target.settle()
        pipe.send(Arrival(full, time.process_time() - cpu))
    if target.buffer is not None:
        pipe.send(wrong_pages(job.shape, target.buffer, draw(job.shape, job.seed, job.repetitions)))
    pipe.recv()
    target.close()
