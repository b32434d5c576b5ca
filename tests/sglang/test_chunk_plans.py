"""The planner between SGLang's batches and the messenger: what is planned, and what a forward pass ends."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sglang_pd_fabric.integration.planning import FORWARD, ChunkPlanner
from sglang_pd_fabric.integration.progress import Forward, LayerSignals
from sglang_pd_fabric.integration.trace import Trace
from sglang_pd_fabric.messenger.states import ReceiveState, SendState
from sglang_pd_fabric.tools.timeline.events import last_request, read_folder

from ..messenger.pair import AUX_BYTES, PAGE_BYTES, PREFILL, Pair, pair, quiet, wire
from .prefill_parts import PAGE_SIZE, PROMPT, Prefill

ROOM = 5
DST = [20, 3, 4, 9, 8, 30, 31]


@pytest.fixture
def both() -> Iterator[Pair]:
    pytest.importorskip("sglang", reason="SGLang is not installed")
    with pair() as both:
        both.introduce()
        yield both


class Rank:
    """A prefill rank with one request, and a batch for each chunk of it."""

    def __init__(self, both: Pair, trace: Trace | None = None) -> None:
        trace = trace or Trace("", "prefill")
        self.messenger = both.prefill
        self.server = Prefill()
        self.scheduler = SimpleNamespace(
            req_to_token_pool=self.server.rows, token_to_kv_pool_allocator=self.server.allocator
        )
        self.planner = ChunkPlanner(
            both.prefill,
            trace.word(both.source.engine.progress),
            layerwise=True,
            launches=False,
            note=lambda forward: trace.note("pass", forward=forward.number),
        )
        self.signals = LayerSignals(decoder(layers=2))
        self.req = self.server.request(ROOM)
        self.req.disagg_kv_sender = SimpleNamespace(kv_mgr=SimpleNamespace(prefill=both.prefill))
        self.req.pending_bootstrap = False
        self.req.disagg_decode_prefix_len = 0
        both.prefill.open(ROOM)

    def run(self, extend_end: int, launch: Callable[[Any], object] = lambda _batch: None) -> Any:
        """One forward pass of the request up to a token of its prompt. Returns the batch."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        self.req.extend_end = extend_end
        batch = SimpleNamespace(reqs=[self.req], forward_mode=ForwardMode.EXTEND)
        self.planner.run(self.scheduler, batch, self.signals, lambda: launch(batch))
        return batch


def decoder(layers: int) -> Any:
    """A model as far as the signals look at it: SGLang's attention, with a projection behind it."""
    from sglang.srt.layers.radix_attention import RadixAttention
    from torch import nn

    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self, layer: int) -> None:
            super().__init__()
            self.attn = RadixAttention(2, 4, 1.0, 2, layer)
            self.o_proj = nn.Linear(2, 2)

        def forward(self, value: Any) -> Any:
            return self.o_proj(value)

    return nn.Sequential(*(Attention(layer) for layer in range(layers)))


def test_chunks_of_a_prompt_are_planned_once_each_and_what_sglang_sends_later_is_left_out(both: Pair) -> None:
    both.pull(ROOM, DST)
    rank = Rank(both)
    pages = rank.server.pages(rank.req)
    handed_over = []
    sent = 0
    for end in (2 * PAGE_SIZE + 3, 4 * PAGE_SIZE, len(PROMPT)):
        batch = rank.run(end)
        assert getattr(batch, FORWARD).number == len(handed_over) + 1
        handed_over.append(both.prefill.handed_over(ROOM))
        both.prefill.send(ROOM, pages[sent : handed_over[-1]], sent)
        sent = handed_over[-1]
    both.prefill.finish(ROOM, 0)
    assert handed_over == [2, 4, 7]
    assert both.wait_received(ROOM) == (ReceiveState.COMPLETE, None)
    assert both.wait_sent(ROOM)[0] is SendState.DONE
    assert both.source.engine.stats().units_completed == 7 * len(PAGE_BYTES) + len(AUX_BYTES)
    for here, there in zip(both.source.kv, both.target.kv, strict=True):
        assert (there[DST] == here[pages]).all()


def test_a_traced_rank_writes_down_what_it_computed_and_sent(both: Pair, tmp_path: Path) -> None:
    traces = Trace(str(tmp_path), "prefill"), Trace(str(tmp_path), "decode")
    rank = Rank(both, traces[0])
    pull = both.decode.pull(ROOM, [PREFILL], np.array(DST, np.int32), 0, 0, 1)
    traces[0].note("pull", room=ROOM, slot=pull.slot, generation=pull.generation)
    both.prefill.on_pull(wire(pull))
    model = decoder(layers=2)
    rank.signals = LayerSignals(model)

    def launch(batch: Any) -> None:
        import torch

        with rank.signals.following(getattr(batch, FORWARD)):
            model(torch.zeros(2))

    for end in (4 * PAGE_SIZE, len(PROMPT)):
        rank.run(end, launch)
    both.prefill.finish(ROOM, 0)
    both.wait_received(ROOM)
    traces[1].note("complete", room=ROOM)
    both.wait_sent(ROOM)
    for trace, engine in zip(traces, (both.source.engine, both.target.engine), strict=True):
        trace.write(engine)
    found = last_request(*read_folder(tmp_path))
    assert [(each.number, len(each.layers)) for each in found.passes] == [(1, 2), (2, 2)]
    for each in found.passes:
        assert each.begin_ns < each.layers[0] < each.layers[1] < each.end_ns < found.complete_ns
    of_pages = [write for write in found.writes if write.layer]
    assert sum(write.nbytes for write in of_pages) == 7 * sum(PAGE_BYTES)
    assert sum(write.nbytes for write in found.writes) == 7 * sum(PAGE_BYTES) + sum(AUX_BYTES)
    for write in of_pages:
        assert found.passes[write.forward - 1].layers[write.layer - 1] <= write.post_ns <= write.done_ns


def test_a_rank_that_is_not_traced_writes_nothing(both: Pair, tmp_path: Path) -> None:
    trace = Trace("", "prefill")
    trace.note("complete", room=ROOM)
    trace.write(both.source.engine)
    assert trace.word(both.source.engine.progress) is both.source.engine.progress
    assert not list(tmp_path.iterdir())


def test_a_request_that_no_decode_has_pulled_is_planned_with_its_next_chunk(both: Pair) -> None:
    rank = Rank(both)
    rank.req.pending_bootstrap = True
    assert getattr(rank.run(2 * PAGE_SIZE), FORWARD) is None
    both.pull(ROOM, DST)
    rank.req.pending_bootstrap = False
    assert getattr(rank.run(len(PROMPT)), FORWARD) is not None
    assert both.prefill.handed_over(ROOM) == 7


def test_pages_that_decode_has_are_not_sent(both: Pair) -> None:
    both.pull(ROOM, DST[3:])
    rank = Rank(both)
    rank.req.disagg_decode_prefix_len = 3 * PAGE_SIZE
    rank.run(len(PROMPT))
    both.prefill.finish(ROOM, 0)
    assert both.wait_received(ROOM)[0] is ReceiveState.COMPLETE
    pages = rank.server.pages(rank.req)[3:]
    for here, there in zip(both.source.kv, both.target.kv, strict=True):
        assert (there[DST[3:]] == here[pages]).all()


def test_others_requests_and_warm_ups_are_left_alone(both: Pair) -> None:
    both.pull(ROOM, DST)
    rank = Rank(both)
    rank.req.disagg_kv_sender = SimpleNamespace()
    assert getattr(rank.run(len(PROMPT)), FORWARD) is None
    assert both.prefill.handed_over(ROOM) == 0
    assert both.source.engine.progress.read() == (0, 0)


def test_the_end_of_a_forward_pass_releases_layers_that_were_skipped(both: Pair) -> None:
    both.pull(ROOM, DST)
    rank = Rank(both)
    rank.run(len(PROMPT), lambda _batch: None)  # no layer has run
    both.prefill.finish(ROOM, 0)
    assert both.wait_received(ROOM)[0] is ReceiveState.COMPLETE
    assert both.source.engine.stats().units_early == 0


def test_a_forward_pass_that_fails_fails_its_requests_and_nothing_of_it_is_sent(both: Pair) -> None:
    both.pull(ROOM, DST)
    rank = Rank(both)

    def broken(_batch: Any) -> None:
        raise MemoryError("of the device")

    with pytest.raises(MemoryError, match="of the device"):
        rank.run(len(PROMPT), broken)
    while not quiet(both.prefill, ROOM):
        both.prefill.sweep()
    assert both.wait_received(ROOM) == (ReceiveState.FAILED, "its forward pass failed on prefill")
    assert both.source.engine.stats().units_completed == 0


def test_each_layer_shows_itself_once_it_is_through_and_only_in_a_numbered_pass(both: Pair) -> None:
    import torch

    model, word = decoder(layers=3), both.source.engine.progress
    signals = LayerSignals(model)
    seen: list[tuple[int, int]] = []
    for layer in model:
        layer.o_proj.register_forward_hook(lambda *_: seen.append(tuple(word.read())))
    model(torch.zeros(2))
    with signals.following(Forward(7, word)):
        model(torch.zeros(2))
    model(torch.zeros(2))
    signals.ended(Forward(7, word), None)
    assert seen == [(0, 0)] * 3 + [(7, 1), (7, 2), (7, 3)] + [(7, 3)] * 3
    assert word.read() == (8, 0)


def test_layers_post_their_pages_during_the_pass(both: Pair) -> None:
    import torch

    both.pull(ROOM, DST)
    rank = Rank(both)
    model = decoder(layers=2)
    rank.signals = LayerSignals(model)

    def launch(batch: Any) -> None:
        with rank.signals.following(getattr(batch, FORWARD)):
            model(torch.zeros(2))
        while both.source.engine.stats().units_completed < len(PAGE_BYTES) * 7:
            both.prefill.sweep()

    rank.run(len(PROMPT), launch)
    both.prefill.finish(ROOM, 0)
    assert both.wait_received(ROOM)[0] is ReceiveState.COMPLETE
    assert both.wait_sent(ROOM)[0] is SendState.DONE
    assert both.source.engine.stats().units_early == len(PAGE_BYTES) * 7
    assert both.prefill.sent(ROOM).hidden_bytes == 7 * sum(PAGE_BYTES)
    assert np.array_equal(both.target.kv[2][DST], both.source.kv[2][rank.server.pages(rank.req)])
