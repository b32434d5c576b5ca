"""docs/reliability.md names tests that exist, for every case, and some of each in every run."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reliability.md").read_text()
TEST = re.compile(r"`(tests/[\w/]+\.(?:py|c))::(\w+)`")
NAMED = sorted(set(TEST.findall(TEXT)))
ALL = [f"C{number:02}" for number in range(1, 35)]
# The first table has one row for each case, the others one for each way in which it could go wrong.
FIRST = [line.split("|")[1:-1] for line in TEXT.splitlines() if re.match(r"\| \*\*C\d\d\*\* \|", line)]
ROWS = [line.split("|")[1:-1] for line in TEXT.splitlines() if re.match(r"\| C\d\d[ ,]", line)]


def cases_of(path: Path) -> dict[str, bool]:
    """A file's tests, and whether each is of every run: functions in Python, cases of the table in C."""
    text = path.read_text()
    if path.suffix == ".c":
        return dict.fromkeys(re.findall(r"\bCASE\((\w+)\)", text), True)
    tree = ast.parse(text)
    marks = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    every_run = not any("nightly" in ast.unparse(mark) for mark in marks)
    return {
        node.name: every_run and not any(map(is_nightly, node.decorator_list))
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def is_nightly(decorator: ast.expr) -> bool:
    return ast.unparse(decorator) in ("nightly", "pytest.mark.nightly")


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_what_the_table_names_exists(path: str, name: str) -> None:
    assert name.startswith("test_") or path.endswith(".c")
    assert (ROOT / path).exists(), path
    assert name in cases_of(ROOT / path)


def test_each_of_the_34_cases_is_green_with_a_test_of_every_run() -> None:
    assert [case.strip(" *") for case, *_ in FIRST] == ALL
    for case, fault, state, tests in FIRST:
        assert fault.strip(), case
        assert state.strip() == "green", case
        ((path, name),) = TEST.findall(tests)
        assert cases_of(ROOT / path)[name], f"{case} rests on {name}, which only the nightly run has"


def test_each_case_is_told_in_full_below() -> None:
    assert {case for cases, *_ in ROWS for case in re.findall(r"C\d\d", cases)} == set(ALL)
    told = {
        (case, *test)
        for cases, _fault, tests, _detection in ROWS
        for case in re.findall(r"C\d\d", cases)
        for test in TEST.findall(tests)
    }
    for case, _fault, _state, tests in FIRST:
        assert (case.strip(" *"), *TEST.findall(tests)[0]) in told, case


def test_every_row_has_a_test_and_nothing_is_put_off() -> None:
    for case, fault, tests, _detection in ROWS:
        assert fault.strip(), case
        assert TEST.search(tests), case
    assert "not yet" not in TEXT.lower()


def test_every_name_in_backticks_was_read() -> None:
    """A name that the pattern above overlooks would be held by nothing."""
    assert TEXT.count("::") == len(TEST.findall(TEXT))
