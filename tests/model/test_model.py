"""The abort protocol in every order of events: no page is another's, no count lies, nothing hangs."""

import pytest

from .protocol import Model
from .search import search

SOUND = {
    "one room number": Model(failures=1, losses=1),
    "two room numbers": Model(numbers=(7, 8), losses=1),
    "aborts are said again": Model(eager=True),
    "a writer ends and starts again": Model(deaths=2),
    "a writer is frozen": Model(freezes=2),
    "a writer is frozen and ends": Model(freezes=1, deaths=1),
    "two slots and pages": Model(pages=2, slots=2, numbers=(7, 8), losses=1),
    "two writers": Model(writers=2),
}


@pytest.mark.parametrize("name", SOUND)
def test_in_no_order_of_events_anything_goes_wrong(name: str) -> None:
    found = search(SOUND[name])
    print(f"{name}: {found.states} states, {found.steps} steps")
    assert found.wrong is None
    assert found.stuck == 0
    assert found.states > 100


@pytest.mark.parametrize(
    ("mutant", "bounds", "what"),
    [
        ("no quarantine", {}, "not its own any more"),
        ("quiet is said early", {}, "not its own any more"),
        ("early aborts are forgotten", {}, "not its own any more"),
        ("generations are ignored", {}, "not everything of it has arrived"),
        ("an abort means the room", {}, "ends request"),
        ("any process may confirm", {"deaths": 1}, "not its own any more"),
        ("nothing lingers", {"deaths": 1}, "not its own any more"),
        ("a standstill is not noticed", {"freezes": 1}, "not its own any more"),
        ("nobody settles", {"freezes": 1}, "not its own any more"),
    ],
)
def test_a_rule_that_is_left_out_is_missed(mutant: str, bounds: dict[str, int], what: str) -> None:
    assert what in (search(Model(mutant=mutant, **bounds)).wrong or "")


def test_an_abort_that_is_said_once_hangs_when_it_is_lost() -> None:
    assert search(Model(losses=1, mutant="an abort is said once")).stuck
