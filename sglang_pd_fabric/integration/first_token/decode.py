"""Decode's hooks: a request begins with all of its prompt but the last token, its first step's input.

SGLang's own functions do the work. Where they would take the whole prompt for computed, the last token is
out of their sight while they run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from sglang_pd_fabric.integration.first_token.decision import ASKED, DECISION, first_token, holds_last_token
from sglang_pd_fabric.integration.first_token.penalties import begins


@contextmanager
def _without_last_token(reqs: Sequence[Any]) -> Iterator[None]:
    """Takes the last prompt token away from those of the requests that wait to run it."""
    with ExitStack() as stack:
        for req in filter(holds_last_token, reqs):
            stack.callback(setattr, req, "origin_input_ids", req.origin_input_ids)
            req.origin_input_ids = req.origin_input_ids[:-1]
        yield


@contextmanager
def _as_output(reqs: Sequence[Any]) -> Iterator[None]:
    """Shows the last prompt token as what the next step takes: no grammar has to accept it."""
    with ExitStack() as stack:
        for req in reqs:
            stack.callback(setattr, req, "grammar", req.grammar)
            stack.callback(setattr, req, "output_ids", req.output_ids)
            req.grammar = None
            req.output_ids = req.origin_input_ids[-1:]
        yield


def tokens_in_pages(original: Callable[..., int], req: Any) -> int:
    return original(req) - int(holds_last_token(req))


def match_prefix(original: Callable[..., Any], queue: Any, req: Any) -> Any:
    """What decode has cached of the last token is of no use: its step computes it anyway."""
    with _without_last_token([req]):
        return original(queue, req)


def create_receiver(original: Callable[..., Any], queue: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
    """A request whose pages prefill computes anew goes on from the output that it has: SGLang's own way."""
    if kwargs.get("is_rebootstrap") and _has_output(req):
        setattr(req, DECISION, "prefill")
    decode_req = original(queue, req, *args, **kwargs)
    if first_token(req) == "decode":
        decode_req.kv_receiver.first_token = "decode"
    return decode_req


def recompute_payload(original: Callable[..., dict[str, Any]], req: Any) -> dict[str, Any]:
    """Tells prefill that this is SGLang's own way too. Without output a request begins anew, as before."""
    payload = original(req)
    if first_token(req) != "decode" or _has_output(req):
        payload["sampling_params"]["custom_params"] = {ASKED: "prefill"}
    return payload


def _has_output(req: Any) -> bool:
    """SGLang takes the last token of the output away while prefill computes, and replays it then."""
    return bool(req.output_ids) or req.pd_rebootstrap_forced_output_id is not None


def stored_by_prefill(original: Callable[..., int], manager: Any, req: Any) -> int:
    """Tokens in whole pages, which decode's offload leaves to prefill: it has seen one token less."""
    if first_token(req) != "decode":
        return original(manager, req)
    return int((len(req.origin_input_ids) - 1) // manager.page_size * manager.page_size)


def commit_transfer(original: Callable[..., None], queue: Any, decode_req: Any) -> None:
    """Takes over what the metadata row says, but for the first token: there is none in it.

    SGLang can replay a token that was output before, without counting it again. The last prompt token is
    replayed in this way, and then taken out of the output.
    """
    req = decode_req.req
    if not holds_last_token(req):
        original(queue, decode_req)
        return
    recomputed = decode_req.is_rebootstrap
    decode_req.is_rebootstrap, req.pd_rebootstrap_forced_output_id = True, req.origin_input_ids[-1]
    try:
        original(queue, decode_req)
    finally:
        decode_req.is_rebootstrap, req.pd_rebootstrap_forced_output_id = recomputed, None
    if req.output_ids:  # otherwise it was aborted
        req.output_ids.pop()


def prepare_prebuilt(original: Callable[..., None], batch: Any) -> None:
    with _without_last_token(batch.reqs):
        original(batch)


def process_prebuilt(original: Callable[..., None], batch: Any, *args: Any, **kwargs: Any) -> None:
    waiting = [req for req in batch.reqs if holds_last_token(req)]
    with _as_output(waiting):
        original(batch, *args, **kwargs)
    for req in waiting:
        begins(req)


def prebuilt_result(original: Callable[..., None], processor: Any, batch: Any) -> None:
    """Requests without a token have nothing to send yet, and nothing that could end them."""
    everyone = batch.reqs
    waiting = [req for req in everyone if holds_last_token(req) and not req.to_finish]
    for req in waiting:
        req.time_stats.set_decode_prebuilt_finish_time()
    batch.reqs = [req for req in everyone if req not in waiting]
    try:
        if batch.reqs:
            original(processor, batch)
    finally:
        batch.reqs = everyone
