"""Prefill ranks that do not agree: the pages of a failed request are freed when no rank reads them any more.

Two processes with SGLang's own collectives over gloo. What takes time is that both import SGLang: 20 s, on
a busy machine a minute.
"""

import multiprocessing as mp
from pathlib import Path
from typing import Any

import pytest

RANKS = 2
# Of each rank: what its senders say, and in which round they let go of their pages.
SAYS = (("failed", "done", "done", "failed"), ("done", "done", "waiting", "failed"))
LETS_GO = ((0, 0, 0, 0), (2, 0, 0, 1))


class Sender:
    def __init__(self, poll: int, lets_go: int) -> None:
        self._poll = poll
        self._asked, self._lets_go = 0, lets_go

    def poll(self) -> int:
        return self._poll

    def released(self) -> bool:
        self._asked += 1
        return self._asked > self._lets_go


def _rank(rank: int, store: str, out: Any) -> None:
    import torch.distributed as dist
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.utils import poll_and_all_reduce_attn_cp_tp_group

    from sglang_pd_fabric.integration import hooks, plugin

    plugin.serves_us = lambda: True
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    tp, cp = dist.group.WORLD, [dist.new_group([each]) for each in range(RANKS)][rank]
    values = {"failed": KVPoll.Failed, "done": KVPoll.Success, "waiting": KVPoll.WaitingForInput}
    senders = [Sender(int(values[say]), go) for say, go in zip(SAYS[rank], LETS_GO[rank], strict=True)]
    rounds = [hooks._fail_together(poll_and_all_reduce_attn_cp_tp_group, senders, cp, tp) for _ in range(3)]
    out.put((rank, rounds))
    dist.barrier()


def test_a_failure_counts_when_no_rank_reads_the_pages_any_more(tmp_path: Path) -> None:
    pytest.importorskip("sglang", reason="SGLang is not installed")
    from sglang.srt.disaggregation.base.conn import KVPoll

    context = mp.get_context("spawn")
    out = context.Queue()
    ranks = [
        context.Process(target=_rank, args=(rank, str(tmp_path / "store"), out)) for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    seen = dict(out.get(timeout=600) for _ in ranks)
    for process in ranks:
        process.join(60)
    assert seen[0] == seen[1]  # every rank sees the same, in every round
    first, second, third, fourth = zip(*seen[0], strict=True)
    moving, failed = int(KVPoll.Transferring), int(KVPoll.Failed)
    assert first == (moving, moving, failed)
    assert second == (int(KVPoll.Success),) * 3
    assert third == (int(KVPoll.WaitingForInput),) * 3
    assert fourth == (moving, failed, failed)
