"""Who computes a request's first token: one rule, asked on both sides, that looks at the request alone.

Both servers must have the same setting and the same features on; decode says in its Pull what it takes to be
true, and prefill fails a request where it sees that differently.
"""

from typing import Any

from sglang_pd_fabric.messenger.states import FirstToken

# Where a request carries the decision.
DECISION = "pd_fabric_first_token"
# Where a request on prefill carries the token that was taken off its prompt, as an array.
LAST_TOKEN = "pd_fabric_last_token"
# In a request's ``custom_params``: ``{"sglang_pd_fabric_first_token": "prefill"}`` asks for stock behaviour.
ASKED = "sglang_pd_fabric_first_token"


def first_token(req: Any) -> FirstToken:
    """What was decided for the request; prefill's, where nothing was."""
    decision: FirstToken = getattr(req, DECISION, "prefill")
    return decision


def whole_prompt(req: Any) -> Any:
    """The prompt as the client sent it: the same on both sides."""
    last = getattr(req, LAST_TOKEN, None)
    return req.origin_input_ids if last is None else req.origin_input_ids + last


def holds_last_token(req: Any) -> bool:
    """Whether a request on decode has no output yet, and all but the last of its prompt in its pages."""
    return first_token(req) == "decode" and not req.output_ids


def stock_reason(req: Any, scheduler: Any, setting: str) -> str | None:
    """Why prefill computes the first token of a request as it does in SGLang, or None: decode does.

    Args:
        req: SGLang's, as it is when both sides are about to queue it, with its whole prompt.
        scheduler: SGLang's.
        setting: ``Settings.first_token``.
    """
    reasons = {
        "setting": setting == "prefill",
        "asked": _asks_for_stock(req.sampling_params.custom_params),
        "one_token": len(req.origin_input_ids) < 2,
        "no_output": req.sampling_params.max_new_tokens == 0,
        "input_logprobs": _wants_input_logprobs(req),
        "hidden_states": bool(req.return_hidden_states),
        "routed_experts": bool(req.return_routed_experts),
        "indexer_topk": bool(req.return_indexer_topk),
        "sampling_mask": bool(req.return_sampling_mask),
        "session": req.session is not None or req.session_id is not None,
        "multimodal": req.multimodal_inputs is not None,
        "embeddings": _is_given_as_embeddings(req),
        "scoring": req.token_indices_to_pool is not None or req.multi_item_delimiter_indices is not None,
        "beam_search": req.beam_group is not None,
        "speculative": not scheduler.spec_algorithm.is_none(),
        "diffusion": scheduler.dllm_config is not None,
        "encoder": bool(scheduler.model_config.is_encoder_decoder),
        "ngram_embedding": bool(scheduler.ngram_embedding_manager.enabled),
        "checksum": scheduler.kv_checksum_computer is not None,
        "watermark": _marks_text(),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _asks_for_stock(params: Any) -> bool:
    """Clients may send anything there."""
    return isinstance(params, dict) and params.get(ASKED) == "prefill"


def _wants_input_logprobs(req: Any) -> bool:
    """They need the logits of every prompt token, the last of which decode would have."""
    return bool(req.return_logprob and 0 <= req.logprob_start_len < len(req.origin_input_ids))


def _is_given_as_embeddings(req: Any) -> bool:
    given = (req.input_embeds, req.positional_embed_overrides, req.token_type_ids)
    return any(each is not None for each in given)


def _marks_text() -> bool:
    from sglang.srt.runtime_context import get_exec

    return bool(get_exec().features.enable_watermark)
