"""Prefill's hooks: the last prompt token is put aside, and nothing that only a first token needs is done."""

from collections.abc import Callable
from typing import Any

from sglang_pd_fabric.integration.first_token.decision import LAST_TOKEN, first_token


def put_last_token_aside(req: Any) -> None:
    """From here on the prompt is one token shorter, for the radix cache, chunks and pages alike.

    The answer that SGLang gives on prefill is nobody's: it needs no log-probabilities.
    """
    setattr(req, LAST_TOKEN, req.origin_input_ids[-1:])
    req.origin_input_ids = req.origin_input_ids[:-1]
    req.return_logprob = False
    req.logprob_start_len = -1


def create_sender(original: Callable[..., bool], queue: Any, req: Any, *args: Any, **kwargs: Any) -> bool:
    """A batch whose requests all want no new token is not sampled: SGLang makes up a zero for each."""
    created = original(queue, req, *args, **kwargs)
    if created and first_token(req) == "decode":
        req.disagg_kv_sender.first_token = "decode"
        req.sampling_params.max_new_tokens = 0
    return created
