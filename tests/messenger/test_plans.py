"""Plans that wait for a forward pass: what is posted when, once each, and what an abort leaves behind."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_pd_fabric.messenger.sharding import pair_tables
from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .pair import AUX_BYTES, DST, LAYOUT, PAGE_BYTES, SRC, Pair, pair, quiet

# K and V of the two layers.
FIRST, SECOND = (0, 2), (1, 3)
BUFFERS = range(len(PAGE_BYTES))


def start(both: Pair, room: int, dst: list[int], pages: int) -> None:
    both.pull(room, dst)
    both.prefill.open(room)
    both.prefill.expect(room, pages)


def store(both: Pair, forward: int, layers: int) -> None:
    both.source.engine.progress.store(forward, layers)


def end_of(both: Pair, forward: int) -> None:
    store(both, forward + 1, 0)


def units(both: Pair, expected: int) -> None:
    """Waits until so many units have gone since the start, and checks that no more have."""
    while (gone := both.source.engine.stats().units_completed) < expected:
        both.prefill.sweep()
    assert gone == expected


def flush(both: Pair) -> int:
    """A whole room that waits for nothing, sent after everything that came before. Returns its units."""
    start(both, 999, [31], 1)
    both.prefill.send(999, np.array([31]), 0)
    both.prefill.finish(999, 7)
    assert both.wait_received(999)[0] is ReceiveState.COMPLETE
    assert both.wait_sent(999)[0] is SendState.DONE
    both.prefill.close(999)
    both.decode.close(999)
    return len(PAGE_BYTES) + len(AUX_BYTES)


def arrived(both: Pair, buffer: int, src: np.ndarray, dst: list[int]) -> bool:
    return bool((both.target.kv[buffer][dst] == both.source.kv[buffer][src]).all())


def test_rows_wait_for_their_layers_and_those_of_a_draft_model_for_the_end() -> None:
    layout = msgspec.structs.replace(LAYOUT, page_bytes=(*PAGE_BYTES, 512, 512), draft_buffers=2)
    tables = pair_tables(layout, layout, range(6), range(10, 12), 20)
    assert tables.pages["src_region"].tolist() == [0, 2, 1, 3, 4, 5]
    assert tables.pages["after"].tolist() == [1, 1, 2, 2, 3, 3]
    assert tables.aux["after"].tolist() == [0, 0]


@pytest.mark.parametrize("provider", ["tcp", "shm", "mapped"])
def test_each_layer_travels_when_it_is_done_and_not_before(provider: str) -> None:
    with pair(provider) as both:
        both.introduce()
        start(both, 1, DST, len(SRC))
        assert both.prefill.plan(1, SRC, 0, forward=5)
        counted = flush(both)
        units(both, counted)
        assert not any(both.target.kv[i][DST].any() for i in BUFFERS)
        store(both, 5, 1)
        counted += 2 * len(SRC)
        units(both, counted)
        counted += flush(both)
        units(both, counted)
        while not all(arrived(both, i, SRC, DST) for i in FIRST):
            pass
        assert not any(both.target.kv[i][DST].any() for i in SECOND)
        end_of(both, 5)
        both.prefill.send(1, SRC, 0)
        both.prefill.finish(1, 5)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)
        assert all(arrived(both, i, SRC, DST) for i in BUFFERS)
        assert both.wait_sent(1)[0] is SendState.DONE
        units(both, counted + 2 * len(SRC) + len(AUX_BYTES))
        assert both.source.engine.stats().units_early == 2 * len(SRC)


def test_the_word_of_an_earlier_forward_pass_releases_nothing_and_that_of_a_later_one_everything() -> None:
    with pair() as both:
        both.introduce()
        start(both, 1, DST, len(SRC))
        start(both, 2, [20, 21], 2)
        both.prefill.plan(2, np.array([1, 2]), 0, forward=9)
        both.prefill.plan(1, SRC, 0, forward=8)
        end_of(both, 7)
        counted = flush(both)
        units(both, counted)
        store(both, 9, 0)
        counted += len(SRC) * len(PAGE_BYTES)
        units(both, counted)
        while not all(arrived(both, i, SRC, DST) for i in BUFFERS):
            pass
        assert not both.target.kv[0][[20, 21]].any()
        end_of(both, 9)
        units(both, counted + 2 * len(PAGE_BYTES))


def test_a_plan_for_a_pass_that_is_over_goes_at_once() -> None:
    with pair() as both:
        both.introduce()
        end_of(both, 3)
        start(both, 1, DST, len(SRC))
        both.prefill.plan(1, SRC, 0, forward=3)
        both.prefill.finish(1, 5)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE


def test_a_room_that_is_not_pulled_yet_takes_no_plan_and_is_sent_afterwards() -> None:
    with pair() as both:
        both.introduce()
        both.prefill.open(1)
        assert not both.prefill.plan(1, SRC[:2], 0, forward=1)
        assert both.prefill.handed_over(1) == 0
        both.pull(1, DST)
        both.prefill.send(1, SRC[:2], 0)
        assert both.prefill.handed_over(1) == 2
        assert both.prefill.plan(1, SRC[2:], 2, forward=2)
        both.prefill.send(1, SRC[2:], 2)
        both.prefill.finish(1, 5)
        end_of(both, 2)
        assert both.wait_received(1)[0] is ReceiveState.COMPLETE
        units(both, len(SRC) * len(PAGE_BYTES) + len(AUX_BYTES))


def test_pages_that_would_be_left_out_fail_the_room() -> None:
    with pair() as both:
        both.introduce()
        start(both, 1, DST, len(SRC))
        assert not both.prefill.plan(1, SRC[3:], 3, forward=1)
        state, reason = both.prefill.poll(1)
        assert state is SendState.FAILED
        assert "page 3 follows page 0" in (reason or "")


@pytest.mark.parametrize(
    "end", [lambda both: both.prefill.fail(1, "aborted"), lambda both: both.prefill.close(1)]
)
def test_a_request_that_ends_before_its_forward_pass_is_quiet_and_posts_nothing(
    end: Callable[[Pair], None],
) -> None:
    with pair() as both:
        both.introduce()
        start(both, 1, DST, len(SRC))
        both.prefill.plan(1, SRC, 0, forward=4)
        assert not quiet(both.prefill, 1)
        assert both.prefill.reading(1)
        end(both)
        assert not both.prefill.reading(1)
        while not quiet(both.prefill, 1):  # no forward pass has run
            both.prefill.sweep()
        end_of(both, 4)
        counted = flush(both)
        units(both, counted)
        assert not any(both.target.kv[i][DST].any() for i in BUFFERS)
        assert both.wait_received(1)[0] is ReceiveState.FAILED


def test_an_abort_between_two_layers_stops_the_second() -> None:
    with pair() as both:
        both.introduce()
        start(both, 1, DST, len(SRC))
        both.prefill.plan(1, SRC, 0, forward=4)
        store(both, 4, 1)
        units(both, 2 * len(SRC))
        both.prefill.fail(1, "aborted by decode")
        while not quiet(both.prefill, 1):
            both.prefill.sweep()
        end_of(both, 4)
        units(both, 2 * len(SRC) + flush(both))


def test_a_failed_room_flushes_until_its_pages_are_read_when_its_row_was_handed_over() -> None:
    """Else its pages could be overwritten while decode still counts them."""
    with pair() as both:
        both.introduce()
        start(both, 1, DST, len(SRC))
        both.prefill.send(1, SRC, 0)
        both.prefill.finish(1, 5)
        both.prefill.fail(1, "aborted on prefill")
        seen = []
        while (answer := both.prefill.poll(1))[0] is not SendState.FAILED:
            seen.append(answer)
        assert all(answer == (SendState.FLUSHING, None) for answer in seen)
        assert quiet(both.prefill, 1)
        assert answer == (SendState.FAILED, "aborted on prefill")


def test_bytes_that_arrived_before_the_end_of_the_forward_pass_are_told_apart() -> None:
    with pair() as both:
        both.introduce()
        start(both, 1, DST, len(SRC))
        both.prefill.plan(1, SRC, 0, forward=1)
        store(both, 1, 1)
        first_layer = len(SRC) * sum(PAGE_BYTES[i] for i in FIRST)
        while both.prefill.sent(1).nbytes < first_layer:
            pass
        both.prefill.forward_ended(1)
        end_of(both, 1)
        both.prefill.finish(1, 5)
        assert both.wait_sent(1)[0] is SendState.DONE
        sent = both.prefill.sent(1)
        assert sent.hidden_bytes == first_layer
        assert sent.nbytes == len(SRC) * sum(PAGE_BYTES) + sum(AUX_BYTES)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_the_chunks_every_page_of_every_layer_goes_once(data: st.DataObject) -> None:
    """SGLang's loops in miniature: a chunk is planned, its pass runs, and it is sent, now or one pass later.

    Every page arrives, so none goes less than once; the units counted are as many as expected, so none
    goes more than once.
    """
    pages = data.draw(st.integers(1, 12), "pages")
    ends = sorted({*data.draw(st.lists(st.integers(1, pages), max_size=4), "chunks"), pages})
    late = data.draw(st.booleans(), "overlap")
    pulled = data.draw(st.integers(0, len(ends)), "pulled before chunk")
    src = np.array(data.draw(st.permutations(range(30)), "source")[:pages], np.int32)
    dst = data.draw(st.permutations(range(30)), "destination")[:pages]
    with pair() as both:
        both.introduce()
        both.prefill.open(1)
        sent = 0
        waiting: list[int] = []
        for number, end in enumerate(ends, 1):
            if number == pulled + 1:
                both.pull(1, dst)
                both.prefill.expect(1, pages)
            first = both.prefill.handed_over(1)
            both.prefill.plan(1, src[first:end], first, forward=number)
            if data.draw(st.booleans(), "layer by layer"):
                store(both, number, 1)
            end_of(both, number)
            waiting.append(end)
            while len(waiting) > late:
                end_sent = waiting.pop(0)
                if number > pulled:
                    both.prefill.send(1, src[sent:end_sent], sent)
                    sent = end_sent
        if pulled == len(ends):
            both.pull(1, dst)
            both.prefill.expect(1, pages)
        both.prefill.send(1, src[sent:], sent)
        both.prefill.finish(1, 5)
        assert both.wait_received(1) == (ReceiveState.COMPLETE, None)
        assert all(arrived(both, i, src, dst) for i in BUFFERS)
        assert both.wait_sent(1)[0] is SendState.DONE
        units(both, pages * len(PAGE_BYTES) + len(AUX_BYTES))
