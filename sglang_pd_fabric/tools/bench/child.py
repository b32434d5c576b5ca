"""The process that measures, and how the bench starts it.

It may run under another Python, one that has the peers but not us, so it is given the folder to import us
from, and its environment on ``env``'s command line. It reads a job on stdin and answers JSON on a pipe of
its own, for peers print what they like.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang_pd_fabric.tools.bench.job import Job

ROOT = Path(__file__).parents[3]
LIMIT_S = 600.0
# What a contender's environment needs, by engine and transport.
ENVIRONMENT = {("nixl", "tcp"): ("UCX_TLS=tcp",), ("mooncake", "tcp"): ("MC_FORCE_TCP=1",)}
_MEASURES = {
    "pair": ("pair", "measure"),
    "idle": ("pair", "measure_idle"),
    "own_cost": ("own_cost", "measure"),
    "overlap": ("overlap.pair", "measure"),
    "delay": ("overlap.delay", "measure"),
}
_MAIN = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from sglang_pd_fabric.tools.bench.child import main; main(sys.argv[2], int(sys.argv[3]))"
)


class ContenderError(RuntimeError):
    """A contender could not be measured; the message has the end of its log."""


def run(what: str, job: Job, python: str = sys.executable) -> Any:
    """Measures in a fresh process; ``what`` is one of ``_MEASURES``. Returns what JSON can carry.

    Raises:
        ContenderError: it failed, or did not end in time.
    """
    answer, theirs = os.pipe()
    environment = ("env", *ENVIRONMENT.get((job.engine, job.transport), ()))
    with tempfile.TemporaryFile("w+") as log, os.fdopen(answer) as results:
        process = subprocess.Popen(
            [*environment, python, "-c", _MAIN, str(ROOT), what, str(theirs)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            pass_fds=(theirs,),
            start_new_session=True,
        )
        os.close(theirs)
        try:
            process.communicate(json.dumps(job), timeout=LIMIT_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise ContenderError(f"{job.engine} over {job.transport} did not end in time") from None
            raise
        text = results.read() if process.returncode == 0 else ""
        if not text:
            log.seek(0)
            tail = "".join(log.readlines()[-30:])
            raise ContenderError(f"{job.engine} over {job.transport} failed at {job.shape.name}:\n{tail}")
        return json.loads(text)


def main(what: str, answer: int) -> None:
    """The measuring process itself. Leaves without exit handlers: those of the peers may crash."""
    job = Job.from_json(json.load(sys.stdin))
    module, function = _MEASURES[what]
    measure = getattr(importlib.import_module(f"sglang_pd_fabric.tools.bench.{module}"), function)
    text = json.dumps(measure(job))
    with os.fdopen(answer, "w") as results:
        results.write(text)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
