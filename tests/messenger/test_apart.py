"""Plans between two processes: layers, many rooms, and a peer that stands still in the middle."""

import numpy as np
import pytest

from sglang_pd_fabric.messenger.states import SendState

from .apart import AUX_BYTES, BIG, LAYERS, PAGES, Apart, apart
from .pair import quiet

SRC = np.array([5, 6, 7, 1, 12, 0])
DST = [9, 10, 2, 3, 15, 1]

MORE_THAN_A_SOCKET_HOLDS = 24  # units of half a megabyte and more


def meet(both: Apart) -> None:
    """A first small request, so that the connection is up."""
    both.pull(99, [0])
    both.prefill.send(99, np.array([0]), 0)
    both.prefill.finish(99, 0)
    assert both.wait_received(99) == ("complete", None)
    while both.prefill.poll(99)[0] is not SendState.DONE:
        pass


@pytest.mark.parametrize("provider", ["tcp", "shm", "mapped"])
def test_a_chunk_travels_layer_by_layer_to_another_process(provider: str) -> None:
    with apart(provider) as both:
        both.pull(1, DST)
        assert both.prefill.plan(1, SRC, 0, forward=1)
        for layer in range(LAYERS):
            assert both.ask("poll", 1)[0] == "counting"
            both.engine.progress.store(1, layer + 1)
            done = (layer + 1) * 2 * len(SRC)
            while both.engine.stats().units_completed < done:
                both.prefill.sweep()
            assert both.engine.stats().units_completed == done
        both.prefill.finish(1, 3)
        assert both.wait_received(1) == ("complete", None)
        for buffer, content in enumerate(both.kv):
            assert (both.ask("pages", buffer, DST) == content[SRC]).all()
        assert both.engine.stats().units_early == LAYERS * 2 * len(SRC)


def test_plans_of_several_forward_passes_are_released_in_any_order() -> None:
    with apart("tcp") as both:
        for room, forward in ((1, 3), (2, 1), (3, 2)):
            both.pull(room, [room])
            assert both.prefill.plan(room, np.array([room + 4]), 0, forward)
        both.engine.progress.store(2, 1)
        both.engine.progress.store(3, 0)
        for room in (2, 3):
            both.prefill.finish(room, 0)
            assert both.wait_received(room) == ("complete", None)
        done = 2 * (len(BIG.page_bytes) + len(AUX_BYTES))
        while both.engine.stats().units_completed < done:  # decode may count a write before its writer does
            both.prefill.sweep()
        assert both.engine.stats().units_completed == done
        assert both.ask("poll", 1)[0] == "counting"
        both.engine.progress.store(4, 0)
        both.prefill.finish(1, 0)
        assert both.wait_received(1) == ("complete", None)
        for buffer, content in enumerate(both.kv):
            assert (both.ask("pages", buffer, [1, 2, 3]) == content[[5, 6, 7]]).all()


def test_pages_for_a_peer_that_stands_still_are_not_given_back_while_they_are_read() -> None:
    """Decode may have counted everything before it hears of the failure: then everything must be right."""
    with apart("tcp") as both:
        meet(both)
        both.pull(1, list(range(PAGES)))
        both.prefill.plan(1, np.arange(PAGES), 0, forward=1)
        written = [content.copy() for content in both.kv]
        with both.frozen():
            both.engine.progress.store(1, LAYERS)
            both.prefill.finish(1, 0)
            while both.engine.stats().units_early < MORE_THAN_A_SOCKET_HOLDS:
                pass
            both.prefill.fail(1, "aborted on prefill")
            assert both.prefill.poll(1) == (SendState.FLUSHING, None)
            assert both.prefill.reading(1)
            assert not quiet(both.prefill, 1)
        while both.prefill.poll(1)[0] is SendState.FLUSHING:
            pass
        assert both.prefill.poll(1) == (SendState.FAILED, "aborted on prefill")
        assert quiet(both.prefill, 1)
        assert len(both.failures) == 1
        for content in both.kv:  # the pages are another request's now
            content[:] = 0
        if both.ask("poll", 1)[0] == "complete":
            for buffer, content in enumerate(written):
                assert (both.ask("pages", buffer, list(range(PAGES))) == content).all()


def test_a_request_aborted_before_its_last_chunk_gives_its_pages_back_at_once() -> None:
    """Without its metadata row it can never be complete, whatever the writes on their way still read."""
    with apart("tcp") as both:
        meet(both)
        both.pull(1, list(range(PAGES)))
        both.prefill.plan(1, np.arange(PAGES), 0, forward=1)
        with both.frozen():
            both.engine.progress.store(1, 1)
            while both.engine.stats().units_early < MORE_THAN_A_SOCKET_HOLDS:
                pass
            both.prefill.fail(1, "aborted on prefill")
            assert not both.prefill.reading(1)
            assert both.prefill.poll(1)[0] is SendState.FAILED
            assert not quiet(both.prefill, 1)
        while not quiet(both.prefill, 1):
            both.prefill.sweep()
        both.engine.progress.store(2, 0)
        assert both.ask("poll", 1)[0] == "failed"
