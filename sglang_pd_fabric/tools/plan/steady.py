"""Closed forms of a server in steady state: requests in decode at once, and their speed.

Decode is a mean field: with Poisson arrivals the others that a request meets are as many on average as there
are at any time, so the pass has one more than the mean.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from sglang_pd_fabric.tools.plan.costs import Batch, Server

_ROUNDS = 200
_CLOSE = 1e-9


class Decoding(NamedTuple):
    """``batch``: requests at once on average; ``step_s``: between two tokens of one request.

    inf: it never settles.
    """

    batch: float
    step_s: float


class Mix(NamedTuple):
    """What a colocated server does beside decode: prompts a second, and what a decode pass and they cost."""

    prompts_per_s: float
    passes: float  # of one prompt
    pass_s: float  # of each, alone
    tokens: float  # of each
    mixed: bool  # decode rides along (chunked prefill), or stands still


def decoding(server: Server, qps: float, outputs: float, context: float, mix: Mix | None = None) -> Decoding:
    """The steady state at ``qps`` requests a second of ``outputs`` tokens behind ``context`` tokens.

    Solves batch = qps * outputs * step(batch + 1) from below, so that it finds the state that a server
    reaches when it starts empty.
    """
    batch = 0.0
    most = server.kv_tokens / context
    for _ in range(_ROUNDS):
        step = _step_s(server, batch + 1, context, mix)
        after = qps * outputs * step
        if after > most or step == inf:
            return Decoding(inf, inf)
        if abs(after - batch) < _CLOSE * max(1.0, after):
            return Decoding(after, step)
        batch = after
    return Decoding(inf, inf)


def mixed_pass_s(server: Server, batch: float, context: float, mix: Mix) -> float:
    """Seconds of a pass of a prompt's chunk in which decode rides along."""
    return mix.pass_s + (
        server.pass_s(Batch(prefill=mix.tokens, decode=batch, context=batch * context))
        - server.pass_s(Batch(prefill=mix.tokens))
    )


def _step_s(server: Server, batch: float, context: float, mix: Mix | None) -> float:
    alone = server.decode_s(batch, context)
    if mix is None:
        return alone
    rate = mix.prompts_per_s * mix.passes
    if not mix.mixed:
        busy = rate * mix.pass_s
        return alone / (1 - busy) if busy < 1 else inf
    together = mixed_pass_s(server, batch, context, mix)
    busy = rate * together
    return 1 / (rate + (1 - busy) / alone) if busy < 1 else inf
