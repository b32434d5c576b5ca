"""Penalties count what was output: SGLang feeds them the latest token before each step of decode.

Where there is none yet, it takes the last of the prompt. A first step of ours must feed them nothing: an
ordinary server samples the first token before it counts anything.
"""

from collections.abc import Callable
from typing import Any

# Where a request says that its next step is its first.
FIRST_STEP = "pd_fabric_first_step"


def begins(req: Any) -> None:
    """The request's next decode step is the one that computes its first token."""
    setattr(req, FIRST_STEP, True)


def cumulate(original: Callable[..., None], batch: Any) -> None:
    """Feeds the penalties as SGLang does, but for the rows of requests that are at their first step."""
    rows = [row for row, req in enumerate(batch.reqs) if getattr(req, FIRST_STEP, False)]
    penalizers = batch.sampling_info.penalizer_orchestrator.penalizers.values()
    kept = [(counted, counted[rows]) for each in penalizers for counted in _counted(each)] if rows else []
    original(batch)
    for counted, before in kept:
        counted[rows] = before
    for row in rows:
        setattr(batch.reqs[row], FIRST_STEP, False)


def _counted(penalizer: Any) -> list[Any]:
    """The tensors, shape ``[requests, ...]``, in which a penalizer counts output."""
    if not penalizer.is_prepared():
        return []
    return [
        value
        for name, value in vars(penalizer).items()
        if name.startswith("cumulated_") or name == "len_output_tokens"
    ]
