"""Whose word it takes until pages of an aborted request go to another one, and for how long they are held."""

import logging
import math

import pytest

from sglang_pd_fabric.messenger.link import Loss
from sglang_pd_fabric.messenger.messages import Endpoint, Quiet
from sglang_pd_fabric.messenger.states import ReceiveState

from .pair import PREFILL, pair
from .test_aborts import started


def test_only_the_writer_itself_can_confirm() -> None:
    with pair() as both:
        both.introduce()
        pull = started(both)
        both.decode.abort(1, "aborted")
        place = 1, pull.slot, pull.generation
        both.decode.on_quiet(Quiet(PREFILL, both.incarnation + 1, *place))
        both.decode.on_quiet(Quiet(Endpoint("prefill", 2), both.incarnation, *place))
        assert not both.decode.released(1)
        both.decode.on_quiet(Quiet(PREFILL, both.incarnation, *place))
        assert both.decode.released(1)


def test_a_confirmation_that_nobody_asked_for_changes_nothing() -> None:
    with pair() as both:
        both.introduce()
        pull = started(both)
        both.decode.on_quiet(Quiet(PREFILL, both.incarnation, 1, pull.slot, pull.generation))
        assert both.decode.poll(1)[0] is ReceiveState.COUNTING
        both.decode.abort(1, "aborted")
        assert not both.decode.released(1)


def test_a_writer_that_never_confirms_holds_the_pages_for_a_time_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pair() as both, caplog.at_level(logging.ERROR):
        both.introduce()
        started(both)
        both.decode.abort(1, "aborted")
        both.pass_time(119)
        assert not both.decode.released(1)
        assert not caplog.records
        both.pass_time(2)
        assert both.decode.released(1)
        assert both.decode.released(1)
        (record,) = caplog.records
        assert str(PREFILL) in record.getMessage()


def test_what_silent_prefills_were_granted_comes_back_where_time_alone_releases_no_pages() -> None:
    """Every restart of one has another endpoint, and nobody ever learns that the old one has ended."""
    with pair(hold_s=math.inf) as both:
        before = both.decode.held().credits_free
        for port in range(60):
            other = Endpoint("prefill", 1000 + port)
            both.decode.hello(other)
            both.decode.lost(other, Loss.SILENT)
        both.pass_time(121)
        assert both.decode.held().credits_free == before


def test_where_time_alone_releases_nothing_pages_wait_for_the_writers_word() -> None:
    with pair(hold_s=math.inf) as both:
        both.introduce()
        pull = started(both)
        both.decode.abort(1, "aborted")
        both.decode.lost(PREFILL, Loss.SILENT)
        both.pass_time(1e6)
        assert not both.decode.released(1)
        both.decode.on_quiet(Quiet(PREFILL, both.incarnation, 1, pull.slot, pull.generation))
        assert both.decode.released(1)
