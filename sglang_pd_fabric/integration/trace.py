"""The trace of a rank: what it computed and what its I/O thread did, as JSON lines for pictures.

Off unless SGLANG_PD_FABRIC_TRACE names a folder. All times are CLOCK_MONOTONIC in nanoseconds, which the
processes of a host share. Who notes something only appends to a queue; the control thread writes.
"""

import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.progress import ProgressWord

ENGINE_EVENTS = 1 << 16  # room in the engine between two looks at it


class Trace:
    """A rank's file in the folder, ``ROLE-PID.jsonl``.

    Args:
        folder: made if it is not there; empty: nothing is noted.
        role: prefill or decode.
    """

    def __init__(self, folder: str, role: str) -> None:
        self._noted: deque[dict[str, Any]] = deque()
        self._file = None
        if folder:
            path = Path(folder)
            path.mkdir(parents=True, exist_ok=True)
            self._file = (path / f"{role}-{os.getpid()}.jsonl").open("w")

    def note(self, kind: str, **fields: int) -> None:
        """Notes that something happened now. Any thread."""
        if self._file is not None:
            self._noted.append({"kind": kind, "ns": time.monotonic_ns(), **fields})

    def write(self, engine: Engine) -> None:
        """Writes what was noted and what the engine has traced since the last call. One thread."""
        if self._file is None:
            return
        rows = [self._noted.popleft() for _ in range(len(self._noted))]
        rows += [event._asdict() for event in engine.take_trace()]
        if rows:
            self._file.write("".join(json.dumps(row) + "\n" for row in rows))
            self._file.flush()

    def word(self, word: ProgressWord) -> ProgressWord:
        """The word to store progress into: each store of this process is noted, where anything is."""
        return word if self._file is None else _NotedWord(word, self)


class _NotedWord(ProgressWord):
    def __init__(self, word: ProgressWord, trace: Trace) -> None:
        super().__init__(word.engine)
        self._trace = trace

    def store(self, forward: int, steps: int) -> None:
        self._trace.note("layer", forward=forward, steps=steps)
        super().store(forward, steps)
