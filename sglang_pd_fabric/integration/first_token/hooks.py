"""Where SGLang is hooked for this mode, by what, and why."""

from collections.abc import Callable
from typing import Any

from sglang_pd_fabric.integration.first_token import counters, decode, intake, penalties, prefill

_DECODE = "sglang.srt.disaggregation.decode"
_PREBUILT = "sglang.srt.disaggregation.decode_schedule_batch_mixin.ScheduleBatchDisaggregationDecodeMixin"

# The function of SGLang's, ours around it, its purpose. All of them run in scheduler processes only.
HOOKS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    (
        "sglang.srt.constrained.grammar_manager.GrammarManager.process_req_with_grammar",
        intake.take_in,
        "decides who computes a request's first token",
    ),
    (
        "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue.create_sender",
        prefill.create_sender,
        "keeps prefill from sampling",
    ),
    (
        f"{_DECODE}.DecodePreallocQueue._create_receiver_and_enqueue",
        decode.create_receiver,
        "lets the Pull say whose the first token is",
    ),
    (
        f"{_DECODE}.DecodePreallocQueue._pre_alloc_fill_len",
        decode.tokens_in_pages,
        "allocates pages for the tokens that come",
    ),
    (
        f"{_DECODE}.DecodePreallocQueue._rebootstrap_prefill_len",
        decode.tokens_in_pages,
        "asks for pages of the tokens that come",
    ),
    (
        f"{_DECODE}.DecodePreallocQueue._match_prefix_and_lock",
        decode.match_prefix,
        "leaves the last token out of the prefix that decode has",
    ),
    (
        f"{_DECODE}.DecodeTransferQueue._commit_transfer_to_req",
        decode.commit_transfer,
        "takes no first token from prefill",
    ),
    (
        "sglang.srt.disaggregation.decode_kvcache_offload_manager.DecodeKVCacheOffloadManager"
        "._prefill_offloaded_len",
        decode.stored_by_prefill,
        "leaves no page out that neither side would store",
    ),
    (f"{_PREBUILT}.prepare_for_prebuilt", decode.prepare_prebuilt, "starts a request one token earlier"),
    (f"{_PREBUILT}.process_prebuilt", decode.process_prebuilt, "makes the last prompt token the first input"),
    (
        "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
        ".process_batch_result_prebuilt",
        decode.prebuilt_result,
        "sends nothing for a request that has no token yet",
    ),
    (
        "sglang.srt.managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens",
        penalties.cumulate,
        "keeps the prompt out of what penalties count",
    ),
    (
        "sglang.srt.managers.schedule_batch.Req.build_rebootstrap_payload",
        decode.recompute_payload,
        "leaves requests that are computed anew to SGLang",
    ),
    (
        "sglang.srt.constrained.base_grammar_backend.BaseGrammarBackend.get_cached_or_future_value",
        counters.count_grammar,
        "counts grammars",
    ),
    (
        "sglang.srt.model_executor.model_runner.ModelRunner.sample",
        counters.count_samples,
        "counts what is sampled",
    ),
)
