"""The parts of the first-token mode by themselves: the rule, the penalties, and what a draft model gets.

SGLang's own requests, penalties and metadata rows, our messenger and engines; no server.
"""

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sglang_pd_fabric.integration.first_token import decode, penalties
from sglang_pd_fabric.integration.first_token.decision import ASKED, DECISION, stock_reason
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from ..messenger.pair import pair
from .test_hnd_pool import configured

torch = pytest.importorskip("torch")
pytest.importorskip("sglang", reason="SGLang is not installed: pip install 'sglang-pd-fabric[sglang]'")

ROOM = 5
PROMPT = array("q", [11, 12, 13, 14])
VOCABULARY = 32


def request(**more: Any) -> Any:
    """A request of SGLang's for a prompt of four tokens."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = more.pop("sampling", {})
    params = SamplingParams(**{"max_new_tokens": 8, **sampling})
    prompt = more.pop("prompt", PROMPT)
    req = Req("1", "", prompt, params, bootstrap_room=ROOM, bootstrap_host="127.0.0.1", **more)
    req.logprob_start_len = len(prompt)
    return req


def scheduler(algorithm: str | None = None) -> Any:
    """What the rule looks at of a scheduler: which features are on."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    return SimpleNamespace(
        spec_algorithm=SpeculativeAlgorithm.from_string(algorithm),
        dllm_config=None,
        model_config=SimpleNamespace(is_encoder_decoder=False),
        ngram_embedding_manager=SimpleNamespace(enabled=False),
        kv_checksum_computer=None,
    )


def reason(req: Any, *, setting: str = "decode", algorithm: str | None = None) -> str | None:
    with configured():
        return stock_reason(req, scheduler(algorithm), setting)


def test_decode_takes_the_first_token_of_a_plain_request_and_of_one_that_wants_output_logprobs() -> None:
    assert reason(request()) is None
    assert reason(request(return_logprob=True, top_logprobs_num=2)) is None
    assert reason(request(sampling={"json_schema": "{}", "frequency_penalty": 1.0})) is None
    assert reason(request(prompt=PROMPT[:2])) is None


def test_the_rule_names_why_it_is_prefills() -> None:
    assert reason(request(), setting="prefill") == "setting"
    assert reason(request(sampling={"custom_params": {ASKED: "prefill"}})) == "asked"
    assert reason(request(sampling={"custom_params": {"thinking_budget": 3}})) is None
    for anything in ("x", [1], 7):
        assert reason(request(sampling={"custom_params": anything})) is None
    assert reason(request(prompt=PROMPT[:1])) == "one_token"
    assert reason(request(sampling={"max_new_tokens": 0})) == "no_output"
    assert reason(request(return_hidden_states=True)) == "hidden_states"
    assert reason(request(return_routed_experts=True)) == "routed_experts"
    assert reason(request(return_sampling_mask=True)) == "sampling_mask"
    assert reason(request(session_id="s")) == "session"
    assert reason(request(token_indices_to_pool=[1])) == "scoring"
    assert reason(request(), algorithm="EAGLE") == "speculative"
    wants_input = request(return_logprob=True)
    wants_input.logprob_start_len = len(PROMPT) - 1
    assert reason(wants_input) == "input_logprobs"
    with_image = request()
    with_image.multimodal_inputs = object()
    assert reason(with_image) == "multimodal"


@pytest.mark.parametrize(
    ("output", "forced", "whose"), [((), None, "decode"), ((), 21, "prefill"), ((20,), 21, "prefill")]
)
def test_a_request_that_is_computed_anew_goes_on_from_its_output_or_begins_once_more(
    output: tuple[int, ...], forced: int | None, whose: str
) -> None:
    """`pause_generation` with `retract`: SGLang has taken the output's last token away, to replay it."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    req = request(sampling={"json_schema": "{}"})
    setattr(req, DECISION, "decode")
    req.output_ids.extend(output)
    req.pd_rebootstrap_forced_output_id = forced
    pull = SimpleNamespace(kv_receiver=SimpleNamespace(first_token="prefill"))
    payload = decode.recompute_payload(Req.build_rebootstrap_payload, req)
    decode.create_receiver(lambda *_args, **_more: pull, None, req, is_rebootstrap=True)
    asked = Req(
        "2",
        "",
        array("q", payload["input_ids"]),
        SamplingParams(**payload["sampling_params"]),
        bootstrap_room=ROOM,
    )
    asked.logprob_start_len = len(payload["input_ids"])
    assert pull.kv_receiver.first_token == whose
    assert reason(asked) == {"decode": None, "prefill": "asked"}[whose]


@pytest.mark.parametrize(
    ("whose", "tokens", "stored"), [("decode", 32, 16), ("decode", 33, 32), ("prefill", 32, 32)]
)
def test_decodes_offload_begins_behind_the_pages_that_prefill_has(
    whose: str, tokens: int, stored: int
) -> None:
    from sglang.srt.disaggregation.decode_kvcache_offload_manager import DecodeKVCacheOffloadManager

    req = request(prompt=array("q", range(tokens)))
    setattr(req, DECISION, whose)
    manager = SimpleNamespace(page_size=16)
    assert (
        decode.stored_by_prefill(DecodeKVCacheOffloadManager._prefill_offloaded_len, manager, req) == stored
    )


def test_the_first_step_feeds_no_penalty_and_the_second_feeds_what_an_ordinary_one_does() -> None:
    """The row beside it, which has output, is fed as ever."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.sampling import penaltylib

    new, old = (
        request(sampling={"frequency_penalty": 1.5, "presence_penalty": 0.5, "min_new_tokens": 2})
        for _ in range(2)
    )
    for req in (new, old):
        req.tokenizer = SimpleNamespace(additional_stop_token_ids=None, eos_token_id=2)
    old.output_ids.append(20)
    batch = ScheduleBatch(reqs=[new, old], device="cpu")
    kinds = {penaltylib.BatchedFrequencyPenalizer, penaltylib.BatchedMinNewTokensPenalizer}
    fed = penaltylib.BatchedPenalizerOrchestrator(VOCABULARY, batch, kinds)
    batch.sampling_info = SimpleNamespace(penalizer_orchestrator=fed)
    counts = fed.penalizers[penaltylib.BatchedFrequencyPenalizer]
    lengths = fed.penalizers[penaltylib.BatchedMinNewTokensPenalizer]
    penalties.begins(new)
    penalties.cumulate(ScheduleBatch.cumulate_penalty_output_tokens, batch)
    assert counts.cumulated_frequency_penalties.sum(1).tolist() == [0.0, 1.5]
    assert lengths.len_output_tokens.flatten().tolist() == [0, 1]
    new.output_ids.append(21)
    penalties.cumulate(ScheduleBatch.cumulate_penalty_output_tokens, batch)
    assert counts.cumulated_frequency_penalties[0, 21] == 1.5
    assert lengths.len_output_tokens.flatten().tolist() == [1, 2]


def rows_of(buffers: Any) -> list[np.ndarray]:
    """The metadata buffers as they are registered: bytes, shape ``[rows, bytes]`` each."""
    tensors = [value for value in vars(buffers).values() if isinstance(value, torch.Tensor)]
    by_address = {tensor.data_ptr(): tensor for tensor in tensors}
    return [by_address[address].view(torch.uint8).numpy() for address in buffers.get_buf_infos()[0]]


def metadata_buffers() -> Any:
    from sglang.srt.disaggregation.utils import MetadataBuffers

    return MetadataBuffers(8, 48, torch.bfloat16, 64)


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_what_a_draft_model_starts_with_reaches_decodes_request_in_either_mode(
    mode: str, recomputed: bool
) -> None:
    """SGLang fills the row and takes it, our engines move it: top-k and hidden state of an EAGLE or MTP."""
    from sglang.srt.disaggregation.decode import DecodeRequest, DecodeTransferQueue
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    here, there = metadata_buffers(), metadata_buffers()
    sent = request(return_logprob=True)
    sent.metadata_buffer_index = 3
    sent.output_ids.append(21)
    sent.hidden_states_tensor = torch.randn(48, generator=torch.Generator().manual_seed(1)).bfloat16()
    sent.output_topk_p, sent.output_topk_index = torch.tensor([0.7, 0.2]), torch.tensor([9, 4])
    sent.output_dsa_topk_indices = None
    sent.logprob.output_token_logprobs_val, sent.logprob.output_token_logprobs_idx = [-0.5], [21]
    here.set_buf(sent)
    with pair(rows=(rows_of(here), rows_of(there))) as both:
        both.introduce()
        both.pull(ROOM, [], aux_row=6)
        both.prefill.open(ROOM)
        both.prefill.finish(ROOM, 3)
        assert both.wait_received(ROOM) == (ReceiveState.COMPLETE, None)
        assert both.wait_sent(ROOM)[0] is SendState.DONE
        assert both.source.engine.stats().units_completed == len(here.get_buf_infos()[0])

    got = request(return_logprob=True)
    setattr(got, DECISION, mode)
    queue: Any = object.__new__(DecodeTransferQueue)
    queue.metadata_buffers = there
    queue.spec_algorithm = SpeculativeAlgorithm.EAGLE
    counted: list[int] = []
    queue.scheduler = SimpleNamespace(
        kv_checksum_computer=None,
        batch_result_processor=SimpleNamespace(
            _maybe_update_reasoning_tokens=lambda _req, token: counted.append(token)
        ),
    )
    receiver = SimpleNamespace(clear=lambda: None)
    with configured():
        decode.commit_transfer(
            DecodeTransferQueue._commit_transfer_to_req,
            queue,
            DecodeRequest(got, receiver, metadata_buffer_index=6, is_rebootstrap=recomputed),
        )
    # The first token is taken from the row exactly where it is prefill's.
    first = [21] if mode == "prefill" else []
    assert (got.output_ids.tolist(), counted) == (first, first)
    assert got.logprob.output_token_logprobs_val == ([-0.5] if first else [])
    assert got.output_topk_p[:2].tolist() == pytest.approx([0.7, 0.2])
    assert got.output_topk_index[:2].tolist() == [9, 4]
    assert torch.equal(got.hidden_states_tensor, sent.hidden_states_tensor)
