"""What must hold in every simulated run, whatever the numbers."""

from dataclasses import replace
from itertools import pairwise

import pytest

from sglang_pd_fabric.tools.plan.errors import PlanError
from sglang_pd_fabric.tools.plan.hardware import GPUS
from sglang_pd_fabric.tools.plan.simulate.run import Arrangement, Played, play

from .fleets import fleet, server, workload

ONE = (1, 1)
EACH = pytest.mark.parametrize("arrangement", list(Arrangement))


def played(
    arrangement: Arrangement, qps: float = 4.0, seed: int = 1, servers: tuple[int, int] = ONE
) -> Played:
    return play(fleet(), arrangement, workload(qps).trace(120, seed), servers, seed)


@EACH
def test_every_token_is_computed_once(arrangement: Arrangement) -> None:
    run = played(arrangement, servers=(2, 3))
    prompts = sum(job.request.prompt for job in run.jobs)
    outputs = sum(job.request.output for job in run.jobs)
    assert sum(each.prefill for each in run.passes) == prompts
    # A server that does both gets the first token out of the prompt's last pass.
    already = 0 if arrangement is Arrangement.DISAGGREGATED else len(run.jobs)
    assert sum(each.decode for each in run.passes) == outputs - already
    assert all(job.made == job.request.output for job in run.jobs)


@EACH
def test_a_server_does_one_thing_at_a_time_and_is_busy_as_long(arrangement: Arrangement) -> None:
    for engine in played(arrangement, servers=(2, 2)).engines:
        assert all(first.end_s <= second.begin_s for first, second in pairwise(engine.passes))
        assert engine.busy_s == pytest.approx(sum(each.end_s - each.begin_s for each in engine.passes))
        assert not engine.waiting
        assert not engine.running
        assert engine.reserved == 0


@pytest.mark.parametrize("arrangement", [Arrangement.COLOCATED, Arrangement.CHUNKED])
def test_a_server_is_never_idle_while_a_request_is_there(arrangement: Arrangement) -> None:
    run = play(fleet(), arrangement, workload(1.0).trace(150, 3), (0, 1), 3)
    idle = [
        (first.end_s, second.begin_s)
        for first, second in pairwise(run.passes)
        if second.begin_s > first.end_s
    ]
    assert idle
    for begin, end in idle:
        came = [job for job in run.jobs if job.request.arrival_s < end]
        assert all(job.last_s <= begin for job in came)


@EACH
def test_times_are_in_order(arrangement: Arrangement) -> None:
    run = played(arrangement)
    for job in run.jobs:
        alone = fleet().prefill.prompt_s(job.request.prompt, job.request.prompt)
        assert job.first_s - job.request.arrival_s >= alone * (1 - 1e-9)
        assert job.last_s >= job.first_s
    outcome = run.outcome()
    assert (outcome.ttft_s > 0).all()
    assert (outcome.tpot_s >= 0).all()
    assert all(0 < share <= 1 for share in outcome.busy.values())


def test_littles_law_holds_for_decode() -> None:
    """Requests in decode, by the clock of passes, are arrivals times stays, by the clock of requests."""
    run = played(Arrangement.DISAGGREGATED)
    decode = next(engine for engine in run.engines if engine.name == "decode 1")
    area = sum(each.decode * (each.end_s - each.begin_s) for each in decode.passes)
    began = {each.end_s: each.begin_s for each in decode.passes}
    stays = [job.last_s - began[job.first_s] for job in run.jobs]
    rate = len(stays) / run.seconds
    assert area / run.seconds == pytest.approx(rate * sum(stays) / len(stays))


@EACH
def test_a_seed_gives_the_same_run_again(arrangement: Arrangement) -> None:
    first, again, other = (played(arrangement, seed=seed, servers=(2, 2)) for seed in (1, 1, 2))
    assert first.passes == again.passes
    assert first.passes != other.passes


def test_requests_wait_for_room_in_the_cache() -> None:
    """A GPU with room for little more than one request decodes one at a time."""
    yi = server("yi-34b", replace(GPUS["h200"], memory=79e9), tp=1)
    assert 8000 < yi.kv_tokens < 16_000
    trace = workload(50.0, "8000", "10").trace(6, 0)
    run = play(fleet(yi), Arrangement.COLOCATED, trace, (0, 1))
    assert {each.decode for each in run.passes} == {0, 1}


def test_a_request_that_fits_no_server_is_refused_with_its_length() -> None:
    yi = server("yi-34b", replace(GPUS["h200"], memory=79e9), tp=1)
    with pytest.raises(PlanError, match="a request of 20000 \\+ 10 tokens"):
        play(fleet(yi), Arrangement.COLOCATED, workload(1.0, "20000", "10").trace(1, 0), (0, 1))


def test_decode_stands_still_for_prompts_only_where_both_share_a_server() -> None:
    trace = workload(3.0).trace(150, 5)
    gaps = {each: play(fleet(), each, trace, (1, 1), 5).outcome().tpot_s.max() for each in Arrangement}
    assert gaps[Arrangement.DISAGGREGATED] < gaps[Arrangement.CHUNKED] < gaps[Arrangement.COLOCATED]
