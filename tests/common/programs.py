"""Runs a program for a test: what it printed comes back, or stands in the failure."""

import os
import subprocess


def output_of(command: list[str], **environment: str) -> str:
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
