"""Differences of counters and histograms between two pages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.tools.explain.page import Histogram, Page, Window

BEFORE = """
# TYPE sglang:tokens counter
sglang:tokens_total{mode="decode",tp_rank="0"} 100.0
sglang:tokens_total{mode="prefill",tp_rank="0"} 5.0
sglang:depth{tp_rank="0"} 3.0
sglang:wait_seconds_bucket{le="0.1"} 2.0
sglang:wait_seconds_bucket{le="1.0"} 2.0
sglang:wait_seconds_bucket{le="+Inf"} 2.0
sglang:wait_seconds_count 2.0
sglang:wait_seconds_sum 0.1
"""
AFTER = """
# TYPE sglang:tokens counter
sglang:tokens_total{mode="decode",tp_rank="0"} 160.0
sglang:tokens_total{mode="prefill",tp_rank="0"} 5.0
sglang:tokens_total{mode="decode",tp_rank="1"} 7.0
sglang:depth{tp_rank="0"} 1.0
sglang:depth{tp_rank="1"} NaN
sglang:wait_seconds_bucket{le="0.1"} 3.0
sglang:wait_seconds_bucket{le="1.0"} 6.0
sglang:wait_seconds_bucket{le="+Inf"} 6.0
sglang:wait_seconds_count 6.0
sglang:wait_seconds_sum 1.65
"""


def window(*pages: tuple[str, str]) -> Window:
    return Window([(Page.parse(before), Page.parse(after)) for before, after in pages], 10.0)


def test_a_counter_grows_by_the_sum_over_servers_and_series() -> None:
    both = window((BEFORE, AFTER), (BEFORE, AFTER))
    assert both.change("sglang:tokens_total", mode="decode") == 2 * (60 + 7)
    assert both.change("sglang:tokens_total", mode="prefill") == 0
    assert both.ranks("sglang:tokens_total") == 6


def test_what_nobody_exports_is_not_zero() -> None:
    assert window((BEFORE, AFTER)).change("sglang:other_total") is None
    assert window((BEFORE, AFTER)).change("sglang:tokens_total", mode="mixed") is None
    assert window((BEFORE, AFTER)).histogram("sglang:other_seconds") is None
    assert window((BEFORE, AFTER)).gauge("sglang:other") is None


def test_a_server_that_was_started_again_counts_from_nothing() -> None:
    assert window((AFTER, BEFORE)).change("sglang:tokens_total", mode="decode") == 100


def test_a_gauge_is_what_it_is_now() -> None:
    assert window((BEFORE, AFTER), (BEFORE, AFTER)).gauge("sglang:depth") == 2
    assert window((BEFORE, AFTER)).largest("sglang:depth") == 1


def test_a_histogram_is_what_was_observed_in_between() -> None:
    found = window((BEFORE, AFTER)).histogram("sglang:wait_seconds")
    assert found == Histogram(4, pytest.approx(1.55), ((0.1, 1.0), (1.0, 4.0), (math.inf, 4.0)))
    assert found.mean == pytest.approx(1.55 / 4)
    assert found.quantile(0.25) == pytest.approx(0.1)
    assert found.quantile(0.625) == pytest.approx(0.55)
    assert found.seconds_above(0.1) == pytest.approx(0.3)


def test_nothing_observed_is_no_histogram() -> None:
    assert window((AFTER, AFTER)).histogram("sglang:wait_seconds") is None


def test_text_that_is_no_page_of_metrics_is_said_to_be_none() -> None:
    with pytest.raises(ValueError, match=r".+"):
        Page.parse("<html>not metrics</html>")


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_lie_in_the_bucket_of_the_value_that_they_stand_for(
    values: list[float], share: float
) -> None:
    bounds = (0.5, 1.0, 5.0, 20.0, 100.0)
    buckets = tuple((bound, float(sum(value <= bound for value in values))) for bound in bounds)
    found = Histogram(len(values), sum(values), buckets)
    true = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    upper = next(bound for bound in bounds if true <= bound)
    lower = max((bound for bound in bounds if bound < upper), default=0.0)
    assert lower <= found.quantile(share) <= upper
    assert found.seconds_above(0.0) <= found.total + 1e-6
