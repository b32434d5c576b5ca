"""Runs programs for tests: what one printed comes back, or stands in the failure."""

import fcntl
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

Command = tuple[Sequence[str], Mapping[str, str]]  # with what it finds in its environment besides


def output_of(command: Sequence[str], **environment: str) -> str:
    """Standard output and error of a command that has to end well."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def make(folder: Path, flavour: str) -> None:
    """Builds the programs in a folder of tests. Those of two folders share the core's objects."""
    build = folder.parents[1] / "build"
    build.mkdir(exist_ok=True)
    with (build / f".{flavour}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of pytest builds the same
        output_of(["make", "-C", str(folder), f"FLAVOUR={flavour}", f"-j{os.cpu_count()}"])


@contextmanager
def side_by_side(commands: Mapping[str, Command]) -> Iterator[Mapping[str, Future[str]]]:
    """Begins to run all of them, some at a time: most of what the core's tests do is to wait."""
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        futures = {
            name: pool.submit(output_of, command, **environment)
            for name, (command, environment) in commands.items()
        }
        try:
            yield futures
        finally:
            for future in futures.values():
                future.cancel()
