"""The soak's own checks: what must be noticed is noticed, in observations made by hand."""

import json
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import psutil
import pytest

from sglang_pd_fabric.tools.demo.client import Answer
from sglang_pd_fabric.tools.soak import judge, plan
from sglang_pd_fabric.tools.soak.draw import draw
from sglang_pd_fabric.tools.soak.logs import tracebacks
from sglang_pd_fabric.tools.soak.records import ROUTER, Ask, Ending, Event, Outcome, Violation
from sglang_pd_fabric.tools.soak.report import Findings, as_record, same_reason
from sglang_pd_fabric.tools.soak.resources import (
    EMPTY_WHEN_IDLE,
    Holdings,
    Memory,
    busy,
    growth,
    kinds_of,
    leaks,
)

RIGHT = Answer("abcdef", (97, 98, 99, 100, 101, 102), (-1.0, -2.0, -3.0, -4.0, -5.0, -6.0), "length")
ASK = Ask(0, 0, 4, stream=False, door="decode-0")
GOOD = Answer("abcd", RIGHT.tokens[:4], RIGHT.logprobs[:4], "length")


def ending(answer: Answer, *, ask: Ask = ASK, taken_back: bool = False) -> Ending:
    return judge.verdict(ask, RIGHT, answer, taken_back=taken_back)[0]


def test_the_beginning_of_the_references_answer_is_right() -> None:
    assert ending(GOOD) is Ending.EQUAL
    assert ending(replace(GOOD, logprobs=())) is Ending.EQUAL
    assert ending(GOOD, taken_back=True) is Ending.EQUAL  # the abort came too late


def test_a_tie_may_be_decided_the_other_way_and_nothing_else() -> None:
    behind = replace(RIGHT, runners_up=((1, 0.5), (7, 0.01), (8, 0.06), (9, 0.0), (1, 0.5), (1, 0.5)))

    def judged(tokens: tuple[int, ...], logprobs: tuple[float, ...]) -> tuple[Ending, str]:
        answer = replace(GOOD, tokens=tokens, logprobs=logprobs)
        return judge.verdict(ASK, behind, answer, taken_back=False)

    ending, reason = judged((97, 7, 1, 2), (-1.0, -2.0, -9.0, -9.0))
    assert ending is Ending.EQUAL
    assert "token 1 " in reason
    assert judged((97, 8, 1, 2), (-1.0, -2.0, -9.0, -9.0))[0] is Ending.SUSPECT  # not the second choice there
    assert judged((97, 98, 8, 2), (-1.0, -2.0, -3.0, -4.0))[0] is Ending.SUSPECT  # no tie
    assert judged((97, 7, 1, 2), (-1.1, -2.0, -9.0, -9.0))[0] is Ending.SUSPECT  # off before it
    assert judged((97, 7, 1), (-1.0, -2.0, -9.0))[0] is Ending.WRONG  # too short


@pytest.mark.parametrize(
    "answer",
    [
        replace(GOOD, tokens=GOOD.tokens[:3], logprobs=GOOD.logprobs[:3]),
        replace(GOOD, tokens=RIGHT.tokens, logprobs=RIGHT.logprobs),
        replace(GOOD, finish="stop"),
        replace(GOOD, finish=""),
        replace(GOOD, logprobs=GOOD.logprobs[:3]),
    ],
    ids=["short", "long", "finish", "no finish", "log-probabilities"],
)
def test_a_wrong_answer_is_wrong(answer: Answer) -> None:
    assert ending(answer) is Ending.WRONG


SUSPECTS = [
    replace(GOOD, tokens=(97, 98, 99, 7)),
    replace(GOOD, tokens=(7, *GOOD.tokens[1:])),
    replace(GOOD, logprobs=(-1.0, -2.0, -3.0 - 1.1 * judge.LOGPROB_TOLERANCE, -4.0)),
]


@pytest.mark.parametrize("answer", SUSPECTS, ids=["last", "first", "log-probability"])
def test_what_the_reference_does_not_say_is_suspect_until_it_is_known_to_be_rounding(answer: Answer) -> None:
    def judged(answer: Answer, *, taken_back: bool = False) -> Ending:
        return judge.verdict(ASK, RIGHT, answer, taken_back=taken_back, rounding=True)[0]

    broken = replace(answer, error="ReadError: gone")
    assert ending(answer) is Ending.SUSPECT
    assert ending(broken) is Ending.SUSPECT
    assert ending(broken, taken_back=True) is Ending.SUSPECT
    assert judged(answer) is Ending.EQUAL
    assert judged(broken) is Ending.ERROR
    assert judged(broken, taken_back=True) is Ending.TAKEN_BACK
    assert judged(replace(answer, finish="stop")) is Ending.WRONG


def test_the_largest_gap_ends_where_the_tokens_do() -> None:
    assert judge.largest_gap(RIGHT, SUSPECTS[2]) == pytest.approx(1.1 * judge.LOGPROB_TOLERANCE)
    assert judge.largest_gap(RIGHT, replace(GOOD, tokens=(97, 7, 99, 100), logprobs=(-1.25, 0, 0, 0))) == 0.25
    assert judge.largest_gap(RIGHT, replace(GOOD, logprobs=())) == 0.0


def test_an_answer_before_an_error_or_an_abort_may_be_its_beginning() -> None:
    broken = Answer("ab", (97, 98), error="ReadError: gone")
    assert ending(broken) is Ending.ERROR
    assert ending(broken, taken_back=True) is Ending.TAKEN_BACK


def test_a_200_that_says_nothing_is_no_answer() -> None:
    aborted = Answer(finish="abort", error="prefill is gone")
    assert ending(Answer(finish="length")) is Ending.EMPTY
    assert ending(Answer()) is Ending.EMPTY
    assert ending(aborted) is Ending.EMPTY
    assert ending(aborted, taken_back=True) is Ending.TAKEN_BACK
    # A stream has begun with 200 and has no other place for its reason.
    assert ending(aborted, ask=replace(ASK, stream=True)) is Ending.ERROR


def test_a_request_that_met_nothing_hangs_after_its_own_time() -> None:
    other = Event("kill", "decode-1", 12.0, 20.0)
    assert judge.limit_s("decode-0", 10.0, 100.0, [other]) == 10.0 + judge.ANSWER_S
    assert judge.limit_s(ROUTER, 10.0, 100.0, [other]) > 10.0 + judge.ANSWER_S


def test_a_fault_gives_its_own_length_and_the_time_of_its_notice() -> None:
    base = 10.0 + judge.ANSWER_S
    frozen = Event("freeze", "prefill-0", 12.0, 20.0)
    assert judge.limit_s("decode-0", 10.0, 100.0, [frozen]) == base + 8.0 + judge.FREEZE_S
    assert judge.limit_s("decode-0", 10.0, 11.0, [frozen]) == base  # it is to come
    away = Event("kill", "decode-0", 5.0)
    assert judge.limit_s("decode-0", 10.0, 30.0, [away]) == base + 20.0 + judge.KILL_S
    past = Event("kill", "decode-0", 1.0, 2.0)
    began = 2.0 + judge.ECHO_S + 1
    assert judge.limit_s("decode-0", began, 100.0, [past]) == began + judge.ANSWER_S


def failed(door: str, began_s: float, ended_s: float) -> Outcome:
    return Outcome(replace(ASK, door=door), began_s, ended_s, Ending.ERROR, "HTTP 500: no peer 10.0.0.1:77")


def test_an_error_needs_a_fault() -> None:
    events = [Event("freeze", "decode-1", 50.0, 51.0)]
    assert judge.unprovoked(failed("decode-0", 49.0, 52.0), events)
    assert judge.unprovoked(failed("decode-1", 40.0, 49.0), events)
    assert not judge.unprovoked(failed("decode-1", 49.0, 52.0), events)
    assert not judge.unprovoked(failed(ROUTER, 52.0, 53.0), events)
    assert judge.unprovoked(failed("decode-1", 51.5 + judge.ECHO_S, 80.0), events)
    assert not judge.unprovoked(replace(failed("decode-0", 1, 2), ending=Ending.EQUAL), [])


def test_detection_counts_what_was_under_way_to_the_server() -> None:
    event = Event("kill", "decode-0", 10.0)
    outcomes = [
        failed("decode-0", 9.0, 13.0),
        failed("decode-0", 9.0, 11.0),
        failed("decode-0", 10.5, 11.0),
        failed("decode-1", 9.0, 11.0),
        replace(failed("decode-0", 9.0, 12.0), ending=Ending.EQUAL),
    ]
    assert judge.detection(event, outcomes) == (1, [1.0, 3.0])


IDLE = Holdings(100, 50, 2000.0, 1, {"sglang_pd_fabric:slots_free": 8192.0, "sglang_pd_fabric:rooms": 0.0})


@pytest.mark.parametrize(
    ("end", "named"),
    [
        (replace(IDLE, fds=120), "descriptors"),
        (replace(IDLE, threads=60), "threads"),
        (replace(IDLE, rss_mb=2500.0), "memory"),
        (replace(IDLE, shm=2), "/dev/shm"),
        (replace(IDLE, counts={**IDLE.counts, "sglang_pd_fabric:slots_free": 8191.0}), "slots_free"),
        (replace(IDLE, counts={}), "slots_free"),
        *((replace(IDLE, counts={**IDLE.counts, name: 1.0}), name) for name in EMPTY_WHEN_IDLE),
    ],
)
def test_each_kind_of_leak_is_named(end: Holdings, named: str) -> None:
    (line,) = leaks("decode-0", IDLE, end)
    assert line.startswith("decode-0: ")
    assert named in line


def test_new_descriptors_are_named() -> None:
    base = replace(IDLE, kinds={"sglang descriptor socket:[N]": 5})
    (line,) = leaks("d", base, replace(base, fds=120, kinds={"sglang descriptor socket:[N]": 25}))
    assert line.endswith("new: 20 sglang descriptor socket:[N]")


def test_descriptors_and_threads_have_the_same_names_in_the_next_start(tmp_path: Path) -> None:
    def kinds(log: str) -> Mapping[str, int]:
        with (tmp_path / log).open("w"), tempfile.TemporaryFile("w", dir="/tmp"):
            held = Holdings(kinds=kinds_of([psutil.Process()]))
        return dict(json.loads(json.dumps(asdict(held)))["kinds"])  # as in the file

    first, ninth = kinds("prefill-0.log"), kinds("prefill-0.9.log")
    assert first == ninth
    assert any(kind.endswith("/prefill-N.log") for kind in first)


def test_an_idle_server_that_holds_no_more_leaks_nothing() -> None:
    assert not leaks("decode-0", IDLE, replace(IDLE, fds=90, threads=49, rss_mb=2100.0))
    assert not busy(IDLE)


def test_growth_is_a_slope_after_the_warm_up_of_one_start() -> None:
    grows = [Memory(1, at, 2000 + (500 if at > 60 else 0) + at / 60 * 12) for at in range(0, 900, 5)]
    assert growth(grows) == pytest.approx(12.0)
    assert growth(grows[:60]) is None
    assert growth([]) is None


LOG = """[2026-01-01 00:00:00] a line
[2026-01-01 00:00:01] Scheduler hit an exception: Traceback (most recent call last):
  File "a.py", line 1, in b
    c()
ValueError: one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in d
KeyError: 'two'
[2026-01-01 00:00:02] a line
Traceback (most recent call last):
  File "a.py", line 3, in e
OSError: three
"""


def test_every_traceback_of_a_log_is_found_once() -> None:
    first, second = tracebacks(LOG)
    assert "ValueError: one" in first
    assert first.endswith("KeyError: 'two'")
    assert second.endswith("OSError: three")


def test_a_seed_says_everything() -> None:
    doors = ["decode-0", "decode-1"]
    assert [*islice(plan.asks(3, 80, doors), 50)] == [*islice(plan.asks(3, 80, doors), 50)]
    assert [*islice(plan.asks(3, 80, doors), 50)] != [*islice(plan.asks(4, 80, doors), 50)]
    faults = plan.injections(3, 1200, ["prefill-0", *doors], 50, 18)
    assert faults == plan.injections(3, 1200, ["prefill-0", *doors], 50, 18)
    assert {(each.fault, each.target) for each in faults} == {
        (fault, name) for fault in ("kill", "freeze") for name in ("prefill-0", *doors)
    }
    assert all(0 < each.at_s < 1200 for each in faults)


def test_the_record_and_the_picture_have_what_happened() -> None:
    findings = Findings(7, 30.0, skipped=1)
    findings.events = [Event("kill", "decode-0", 10.0, 14.0), Event("freeze", "prefill-0", 20.0)]
    findings.outcomes = [failed("decode-0", 9.0, 11.0), Outcome(ASK, 1.0, 2.0, Ending.EQUAL)]
    findings.violations = [Violation("hung", 12.0, "something")]
    record = json.loads(json.dumps(as_record(findings, {"provider": "tcp"})))
    assert record["requests"] == {"error": 1, "equal": 1}
    assert record["errors"] == {"HTTP N: no peer ADDRESS": 1}
    assert record["events"][0]["under_way_errors_s"] == [1.0]
    assert record["noticed"][1] == {
        "fault": "kill decode",
        "times": 1,
        "answered": 0,
        "failed": 1,
        "least_s": 1.0,
        "median_s": 1.0,
        "most_s": 1.0,
    }
    assert record["violations"][0]["kind"] == "hung"
    picture = draw(findings.events, findings.outcomes, ["prefill-0", "decode-0"], 30.0, "a < b")
    texts = [element.text for element in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}title")]
    assert len(texts) == 2
    assert "kill decode-0" in str(texts)


def test_reasons_differ_by_more_than_their_numbers() -> None:
    assert same_reason("room 17 at 10.0.0.1:5 failed") == same_reason("room 4 at 10.0.0.22:99 failed")
    assert same_reason("") == ""
