"""docs/reliability.md names tests that exist, for every case that it claims."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/reliability.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.(?:py|c))::(\w+)`", TEXT)))
ROWS = [line.split("|")[1:-1] for line in TEXT.splitlines() if re.match(r"\| C\d\d[ ,]", line)]


def cases_of(path: Path) -> set[str]:
    """Names of a file's tests: functions in Python, cases of the table in C."""
    text = path.read_text()
    if path.suffix == ".c":
        return set(re.findall(r"\bCASE\((\w+)\)", text))
    return {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_what_the_table_names_exists(path: str, name: str) -> None:
    assert name.startswith("test_") or path.endswith(".c")
    assert (ROOT / path).exists(), path
    assert name in cases_of(ROOT / path)


def test_every_row_has_a_test_or_says_that_there_is_none() -> None:
    assert ROWS
    for case, fault, tests, _detection in ROWS:
        assert fault.strip(), case
        assert "::" in tests or "not yet" in tests, case


def test_every_name_in_backticks_was_read() -> None:
    """A name that the pattern above overlooks would be held by nothing."""
    assert TEXT.count("::") == len(re.findall(r"`tests/[\w/]+\.(?:py|c)::\w+`", TEXT))
