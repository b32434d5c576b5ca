"""The closed forms: against queueing theory, against the simulation, and at sizes that are not simulated."""

from math import ceil

import numpy as np
import pytest

from sglang_pd_fabric.tools.plan.constants import CONSTANTS
from sglang_pd_fabric.tools.plan.fleet import Forecast
from sglang_pd_fabric.tools.plan.outcome import Targets
from sglang_pd_fabric.tools.plan.simulate.run import Arrangement, play
from sglang_pd_fabric.tools.plan.size import size
from sglang_pd_fabric.tools.plan.steady import decoding

from .fleets import fleet, server, workload

TARGETS = Targets(2.0, 0.03)


def test_prompts_wait_as_in_an_m_d_1_queue() -> None:
    one, servers, busy = fleet(), 512, 0.6
    prompt = one.prefill.prompt_s(4000, 8192)
    load = workload(servers * busy / prompt, "4000", "50")
    outcome = Forecast(one, load).disaggregated(servers, 4 * servers)
    rest = prompt + one.link.layerwise_s(4000, 8192) + CONSTANTS.join_s + 1.5 * np.mean(outcome.tpot_s)
    waited = float(np.mean(outcome.ttft_s)) - rest
    assert waited == pytest.approx(prompt * busy / (2 * (1 - busy)), rel=0.05)


def test_decode_settles_where_arrivals_and_stays_agree() -> None:
    state = decoding(server(), qps=2, outputs=200, context=4000)
    assert state.batch == pytest.approx(2 * 200 * server().decode_s(state.batch + 1, 4000))


@pytest.mark.parametrize("arrangement", list(Arrangement))
@pytest.mark.parametrize("qps", [2.0, 5.0])
def test_closed_forms_say_what_the_simulation_plays(arrangement: Arrangement, qps: float) -> None:
    """4 servers of R1; means of some 1,200 requests, so within what chance leaves. 3 s each."""
    one, load = fleet(), workload(qps, "lognormal:2000,0.6")
    played = play(one, arrangement, load.trace(1200, 7), (2, 2), 7).outcome()
    each = Forecast(one, load, 7)
    apart = arrangement is Arrangement.DISAGGREGATED
    known = each.disaggregated(2, 2) if apart else each.colocated(4, arrangement is Arrangement.CHUNKED)
    assert np.mean(known.tpot_s) == pytest.approx(np.mean(played.tpot_s), rel=0.1)
    assert np.mean(known.ttft_s) == pytest.approx(np.mean(played.ttft_s), rel=0.15)


def test_too_much_load_never_settles() -> None:
    outcome = Forecast(fleet(), workload(100.0)).disaggregated(1, 1)
    assert not outcome.settled
    assert outcome.met(TARGETS) == 0
    assert not Forecast(fleet(), workload(100.0)).colocated(1, mixed=False).settled


def test_thousands_of_servers_are_as_many_times_one() -> None:
    sizing = size(fleet(), workload(10.0), TARGETS)
    many = sizing.servers(10_000.0)
    assert many == (ceil(10_000 / sizing.prefill_qps), ceil(10_000 / sizing.decode_qps))
    assert sum(many) > 2000
    outcome = Forecast(fleet(), workload(10_000.0)).disaggregated(*many)
    assert outcome.met(TARGETS) == pytest.approx(TARGETS.share, abs=0.05)


def test_the_ratio_follows_the_workload() -> None:
    long_answers = size(fleet(), workload(1.0, "2000", "1000"), TARGETS)
    long_prompts = size(fleet(), workload(1.0, "8000", "100"), TARGETS)
    assert long_answers.ratio > 1 > long_prompts.ratio


def test_what_cannot_be_met_is_carried_by_no_server() -> None:
    sizing = size(fleet(), workload(1.0), Targets(1e-3, 1e-4))
    assert (sizing.prefill_qps, sizing.decode_qps, sizing.servers(1.0)) == (0, 0, (0, 0))
