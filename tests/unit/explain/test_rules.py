"""Each verdict for the window that it is made for, and none of them for another."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.tools.explain import phases as ph
from sglang_pd_fabric.tools.explain.figures import Answers, Figures, Prefill, Stages, Timing, Waiting
from sglang_pd_fabric.tools.explain.report import to_data, to_text
from sglang_pd_fabric.tools.explain.rules import Goals, Kind, judge
from tests.unit.explain.windows import (
    HEALTHY,
    INTERRUPTED,
    REQUESTS,
    timing,
    with_answers,
    with_prefill,
    with_stages,
)


def kinds(figures: Figures, goals: Goals | None = None) -> list[Kind]:
    return [verdict.kind for verdict in judge(figures, goals)]


def evidence(figures: Figures, goals: Goals | None = None) -> str:
    first = judge(figures, goals)[0]
    return "\n".join([first.text, *first.evidence])


def test_nothing_is_wrong_where_nothing_waits() -> None:
    assert kinds(HEALTHY) == [Kind.NOTHING]


def test_a_long_time_to_first_token_alone_does_not_make_prefill_slow() -> None:
    assert kinds(with_prefill(forward=timing(30_000))) == [Kind.NOTHING]


def test_no_traffic_is_said_and_nothing_else() -> None:
    assert kinds(Figures(10.0)) == [Kind.NO_TRAFFIC]
    assert kinds(Figures(10.0, answers=Answers(requests=0, tokens=0, busy=0.0), waiting=Waiting(0, 0))) == [
        Kind.NO_TRAFFIC
    ]


def test_a_queue_on_prefill() -> None:
    found = with_prefill(queue=timing(900), busy=0.97)
    assert kinds(found) == [Kind.QUEUE_PREFILL]
    assert "900 ms of 1195 ms" in evidence(found)
    assert "97%" in evidence(found)
    assert "1 requests now wait" in evidence(found)


@pytest.mark.parametrize("stage", ["memory", "place"])
def test_a_queue_on_decode(stage: str) -> None:
    found = with_stages(800, **{stage: timing(800)})
    assert kinds(found) == [Kind.QUEUE_DECODE]
    assert "800 ms of 1100 ms" in evidence(found)


def test_a_throttled_transfer_is_named_with_its_speed() -> None:
    slow = replace(HEALTHY.moved, hidden_bytes=2e9, seconds=100.0)
    found = replace(with_prefill(exposed=timing(1500)), moved=slow)
    assert kinds(found) == [Kind.TRANSFER]
    assert "1500 ms of 1792 ms" in evidence(found)
    assert "0.200 GB/s" in evidence(found)
    assert "10% had been written" in evidence(found)


def test_a_slow_bootstrap_or_hand_over() -> None:
    assert kinds(with_stages(700, handshake=timing(700))) == [Kind.BOOTSTRAP]
    assert kinds(with_stages(700, arrival=timing(965))) == [Kind.HANDOVER]


def test_a_slow_first_step_or_delivery() -> None:
    assert kinds(with_stages(700, first_step=timing(700))) == [Kind.FIRST_STEP]
    assert kinds(with_stages(700)) == [Kind.DELIVERY]
    slow_router = replace(HEALTHY, router_ttft=timing(900))
    assert kinds(slow_router) == [Kind.DELIVERY]
    assert "router" in evidence(slow_router)


def test_a_transfer_that_prefill_knows_of_later_than_decode_counts_as_long_as_decode_waited() -> None:
    prefill = replace(HEALTHY.prefill, exposed=timing(900))
    found = with_stages(700, arrival=timing(965))
    found = replace(found, prefill=prefill)
    parts = {phase.name: phase for phase in ph.phases(found)}
    assert parts[ph.TRANSFER].seconds == pytest.approx(0.720)
    assert parts[ph.HANDOVER].seconds == 0
    assert kinds(found) == [Kind.TRANSFER]
    assert "720 ms of 1000 ms" in evidence(found)


def test_decode_s_first_step_is_no_slow_delivery() -> None:
    """Steps take 20 ms here: three of them are 60 ms."""
    found = with_stages(100, first_step=timing(5))
    assert kinds(found) == [Kind.DELIVERY]
    assert kinds(with_answers(found, first_sampled=1.0)) == [Kind.NOTHING]
    assert "up to 3 of its steps, 60 ms" in to_text(with_answers(found, first_sampled=1.0), [])
    assert kinds(with_answers(with_stages(700), first_sampled=1.0)) == [Kind.DELIVERY]


def test_prefill_is_bound_by_compute_only_when_it_has_no_time_left() -> None:
    found = with_prefill(forward=timing(2000), busy=0.95)
    assert kinds(found) == [Kind.PREFILL]
    assert "2000 prompt tokens a request were computed, 1.000 ms each" in evidence(found)


def test_prefill_that_misses_the_goal_is_named_when_nothing_waits() -> None:
    found = with_prefill(forward=timing(2000))
    assert kinds(found, Goals(ttft=1.0)) == [Kind.PREFILL]
    assert kinds(found, Goals(ttft=3.0)) == [Kind.NOTHING]
    waits = with_prefill(forward=timing(2000), queue=timing(1000))
    assert kinds(waits, Goals(ttft=1.0)) == [Kind.QUEUE_PREFILL]


def test_interrupted_streams_are_named_before_the_work_that_interrupts_them() -> None:
    busy = with_prefill(forward=timing(2000), busy=0.95)
    assert kinds(with_answers(busy, gaps=INTERRUPTED, prompt_tokens=60_000)) == [
        Kind.INTERRUPTED,
        Kind.PREFILL,
    ]


def test_streams_that_a_prompt_of_the_same_server_interrupts() -> None:
    found = with_answers(gaps=INTERRUPTED, prompt_tokens=60_000)
    assert kinds(found) == [Kind.INTERRUPTED]
    assert "60000 prompt tokens" in evidence(found)
    assert "median 20.0 ms, 99 % 400.0 ms" in evidence(found)


def test_streams_that_a_prompt_on_the_same_host_interrupts_most_likely() -> None:
    found = replace(with_answers(gaps=INTERRUPTED), shared_host=True)
    assert kinds(found) == [Kind.INTERRUPTED]
    assert "most likely" in evidence(found)


def test_prompts_on_the_same_host_do_not_interrupt_streams_for_longer_than_they_take() -> None:
    found = replace(with_answers(with_prefill(busy=0.4), gaps=INTERRUPTED), shared_host=True)
    assert kinds(found) == [Kind.CANNOT_TELL]
    assert "prefill had work only 40% of the time" in evidence(found)


def test_streams_interrupted_by_what_no_metric_shows() -> None:
    assert kinds(with_answers(gaps=INTERRUPTED)) == [Kind.CANNOT_TELL]


def test_prompts_on_a_server_whose_streams_flow_are_no_fault() -> None:
    assert kinds(with_answers(prompt_tokens=60_000)) == [Kind.NOTHING]


def test_decode_without_memory() -> None:
    assert kinds(with_answers(memory_used=0.97)) == [Kind.DECODE_MEMORY]
    found = with_answers(retracted=3.0)
    assert kinds(found) == [Kind.DECODE_MEMORY]
    assert "3 requests were retracted" in evidence(found)
    assert "20 requests run, with 2200 tokens of history each" in evidence(found)


def test_too_many_that_run_for_the_goal() -> None:
    assert kinds(HEALTHY, Goals(tpot=0.015)) == [Kind.DECODE_STEP]
    assert "20 requests run" in evidence(HEALTHY, Goals(tpot=0.015))
    assert kinds(HEALTHY, Goals(tpot=0.025)) == [Kind.NOTHING]


def test_failures_are_told_beside_the_slow_phase() -> None:
    assert kinds(replace(HEALTHY, prefill=replace(HEALTHY.prefill, failed=2.0))) == [Kind.FAILURES]


@pytest.mark.parametrize(
    ("waiting", "kind"),
    [
        (Waiting(0, 9, 0, 0, 0, 0), Kind.QUEUE_PREFILL),
        (Waiting(9, 0, 0, 5, 0, 0), Kind.QUEUE_DECODE),
        (Waiting(9, 0, 0, 0, 0, 0), Kind.BOOTSTRAP),
        (Waiting(0, 0, 9, 0, 9, 0), Kind.TRANSFER),
    ],
)
def test_when_nothing_comes_out_the_queues_say_where_it_stands(waiting: Waiting, kind: Kind) -> None:
    assert kinds(Figures(10.0, waiting=waiting)) == [kind]


@pytest.mark.parametrize("stage", ["queue", "forward", "exposed"])
def test_a_missing_stage_of_prefill_is_named(stage: str) -> None:
    found = replace(HEALTHY, prefill=replace(HEALTHY.prefill, **{stage: None}))
    assert kinds(found) == [Kind.CANNOT_TELL]
    assert "of prefill has nothing of this window" in evidence(found)


@pytest.mark.parametrize("stage", ["prepare", "handshake", "memory", "arrival", "place", "first_step"])
def test_a_missing_stage_of_decode_is_named(stage: str) -> None:
    found = replace(HEALTHY, stages=replace(HEALTHY.stages, **{stage: None}))
    assert kinds(found) == [Kind.CANNOT_TELL]
    assert "decode" in evidence(found)


def test_without_the_idle_time_nobody_says_that_prefill_has_none() -> None:
    found = replace(HEALTHY, prefill=replace(HEALTHY.prefill, busy=None))
    assert kinds(found) == [Kind.CANNOT_TELL]
    assert "sglang:scheduler_idle_seconds_total" in evidence(found)


def test_without_streams_later_tokens_and_delivery_cannot_be_told() -> None:
    found = with_answers(gaps=None, ttft=None)
    assert kinds(found) == [Kind.CANNOT_TELL, Kind.CANNOT_TELL]


def test_streams_that_are_few_are_not_compared_with_all_requests() -> None:
    few = with_answers(ttft=Timing(9.0, REQUESTS / 2))
    assert ph.first_token(few) is None
    assert kinds(few) == [Kind.CANNOT_TELL]


def test_phases_add_up_to_the_time_to_first_token() -> None:
    seconds = [phase.seconds for phase in ph.phases(HEALTHY) if phase.name != ph.ROUTER]
    assert sum(second or 0.0 for second in seconds) == pytest.approx(0.3)


def test_servers_that_do_both_have_no_transfer() -> None:
    found = replace(
        HEALTHY, disaggregated=False, stages=Stages(prepare=timing(1)), prefill=replace(HEALTHY.prefill)
    )
    assert kinds(found) == [Kind.NOTHING]
    assert "transfer: none" in to_text(found, judge(found))
    assert kinds(replace(found, prefill=replace(found.prefill, queue=timing(200)))) == [Kind.QUEUE_PREFILL]


timings = st.none() | st.builds(Timing, st.floats(0, 1e4), st.floats(1, 1e6))
shares = st.none() | st.floats(0, 1)
counts = st.none() | st.floats(0, 1e9)


@given(
    st.builds(
        Figures,
        st.floats(0.1, 1e4),
        disaggregated=st.booleans(),
        shared_host=st.booleans(),
        router_ttft=timings,
        answers=st.builds(
            Answers,
            counts,
            timings,
            st.none(),
            shares,
            counts,
            counts,
            counts,
            counts,
            shares,
            counts,
            counts,
            shares,
        ),
        prefill=st.builds(Prefill, timings, timings, timings, shares, counts, counts),
        stages=st.builds(Stages, timings, timings, timings, timings, timings, timings),
        waiting=st.builds(Waiting, counts, counts, counts, counts, counts, counts),
    )
)
def test_whatever_is_missing_there_is_a_verdict_and_a_report(figures: Figures) -> None:
    found = judge(figures)
    assert found
    assert to_text(figures, found).startswith(found[0].kind.value.upper())
    assert to_data(figures, found)["verdicts"]
