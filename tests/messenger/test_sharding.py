"""Servers of unequal parallel sizes over real engines: when decode's count is full, every byte is right."""

from dataclasses import replace

import numpy as np
import pytest
from sharded import Model, Request, Server

from sglang_pd_fabric.messenger.states import ReceiveState, SendState

from .groups import groups
from .pair import quiet

REQUEST = Request(room=7, salt=0, prefix=1, src_pages=(3, 4, 5, 9), dst_pages=(8, 9, 1, 2))
GQA = Model(kv_heads=4, layers=3, page_size=16)
MLA = Model(attention="mla", kv_heads=1, widths=(5,), layers=3, page_size=16)
CASES = {
    "one to one": (GQA, Server(1, (3,)), Server(1, (3,))),
    "prefill larger": (GQA, Server(2, (3,)), Server(1, (3,))),
    "decode larger": (GQA, Server(1, (3,)), Server(2, (3,))),
    "equal": (GQA, Server(2, (3,)), Server(2, (3,))),
    "heads on two prefill ranks each": (replace(GQA, kv_heads=2), Server(4, (3,)), Server(2, (3,))),
    "heads on two decode ranks each": (replace(GQA, kv_heads=2), Server(2, (3,)), Server(4, (3,))),
    "one head everywhere": (replace(GQA, kv_heads=1), Server(4, (3,)), Server(1, (3,))),
    "stages": (GQA, Server(2, (2, 1)), Server(1, (3,))),
    "draft": (
        replace(GQA, draft_layers=1, draft_kv_heads=1),
        Server(2, (2, 1)),
        Server(1, (3,)),
    ),
    "mla equal": (MLA, Server(2, (3,)), Server(2, (3,))),
    "mla decode smaller": (MLA, Server(2, (3,)), Server(1, (3,))),
    "mla decode larger": (MLA, Server(1, (3,)), Server(2, (3,))),
}


@pytest.mark.parametrize("order", ["nhd", "hnd"])
@pytest.mark.parametrize("case", CASES)
def test_every_decode_rank_completes_with_every_byte_right(case: str, order: str) -> None:
    model, prefill, decode = CASES[case]
    with groups(replace(model, order=order), prefill, decode, REQUEST) as world:
        world.pull(REQUEST)
        world.send(REQUEST)
        world.assert_arrived(REQUEST)


def test_mla_to_two_data_parallel_groups_uses_both_sources_and_the_others_conclude() -> None:
    with groups(MLA, Server(2, (3,)), Server(1, (3,)), REQUEST, decode_groups=2) as world:
        wrote: list[set[int]] = [set(), set()]
        for room in range(1, 13):
            request = replace(REQUEST, room=room)
            group = [world.decodes[room % 2]]
            for memory in group[0].rank.memory:
                memory[:] = 0x55
            world.pull(request, group)
            world.send(request)
            world.assert_arrived(request, group)
            sent = [prefill.messenger.sent(room).nbytes > 0 for prefill in world.prefills]
            assert sorted(sent) == [False, True]
            wrote[room % 2].add(sent.index(True))
            for prefill in world.prefills:
                prefill.messenger.close(room)
            group[0].messenger.close(room)
        assert wrote == [{0, 1}, {0, 1}]


def test_pages_that_decode_has_already_leave_the_metadata_row_to_one_writer() -> None:
    nothing = replace(REQUEST, src_pages=(), dst_pages=())
    with groups(GQA, Server(2, (2, 1)), Server(1, (3,)), nothing) as world:
        world.pull(nothing)
        world.send(nothing)
        world.assert_arrived(nothing)


def test_a_writer_that_is_missing_keeps_decode_waiting_and_one_that_fails_ends_it() -> None:
    with groups(GQA, Server(2, (3,)), Server(1, (3,)), REQUEST) as world:
        world.pull(REQUEST)
        first, second = world.prefills
        first.messenger.open(REQUEST.room)
        first.messenger.send(REQUEST.room, np.array(REQUEST.src_pages), 0)
        first.messenger.finish(REQUEST.room, REQUEST.aux_src)
        assert world.sent(first, REQUEST.room) == (SendState.DONE, None)
        (decode,) = world.decodes
        assert decode.messenger.poll(REQUEST.room) == (ReceiveState.COUNTING, None)
        second.messenger.fail(REQUEST.room, "out of memory")
        assert world.received(decode, REQUEST.room) == (ReceiveState.FAILED, "out of memory")


def test_an_abort_finds_every_rank_quiet_those_that_write_nothing_too() -> None:
    with groups(MLA, Server(4, (3,)), Server(1, (3,)), REQUEST) as world:
        world.pull(REQUEST)
        for prefill in world.prefills:
            prefill.messenger.open(REQUEST.room)
            prefill.messenger.send(REQUEST.room, np.array(REQUEST.src_pages), 0)
            prefill.messenger.fail(REQUEST.room, "aborted by decode")
            while not quiet(prefill.messenger, REQUEST.room):
                pass
        assert world.received(world.decodes[0], REQUEST.room) == (ReceiveState.FAILED, "aborted by decode")
