"""Finds in the sources every text that can become the reason of a failed request.

A reason is an argument of one of a few functions (``SINKS``). What stands there is followed to texts: through
variables, constants, alternatives and exceptions. What is put into a text is taken for a number.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "sglang_pd_fabric"
FILES = [*sorted((PACKAGE / "messenger").rglob("*.py")), *sorted((PACKAGE / "integration").rglob("*.py"))]
# What takes a reason, and in which place; -1: the last. With a dot in front only methods.
SINKS = {
    ".fail": -1,
    ".fail_room": 1,
    ".record_failure": 1,
    "._fail_waiting": 1,
    ".fail_rooms_of": 1,
    ".drop": 1,
    ".refuse": 1,
    "._refuse": 1,
    ".tell": 1,
    ".abort": 1,
    ".tombstones.add": 1,
    "Decode": 1,
    "Failure": 5,
}
SGLANGS = {".record_failure": 1, "._fail_prefill_recompute": 1}
FIELDS = {"failure", "refusal", "next_fails"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class UnknownReasonError(AssertionError):
    """An expression that this cannot follow."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def reasons(path: Path, passed_on: set[str], sinks: dict[str, int]) -> Iterator[str]:
    """Texts that a file gives as reasons, or keeps in one of ``FIELDS``.

    Args:
        passed_on: expressions that stand for reasons which are made elsewhere, and are found there.
        sinks: what takes a reason.

    Raises:
        UnknownReasonError: an expression is neither followed nor among these.
    """
    for function in functions(path):
        for call in calls(function):
            name = ast.unparse(call.func)
            for sink, place in sinks.items():
                met = name.endswith(sink) if sink.startswith(".") else f".{name}".endswith(f".{sink}")
                if met and len(call.args) > max(place, 0):
                    yield from texts(path, function, call.args[place], passed_on)
        for target, value in assignments(function):
            if isinstance(target, ast.Attribute) and target.attr in FIELDS:
                yield from texts(path, function, value, passed_on)


def returned(path: Path, name: str, passed_on: set[str]) -> Iterator[str]:
    """Texts that a function returns."""
    found = [function for function in functions(path) if function.name == name]
    assert found, f"{path}: no {name}"
    for function in found:
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None:
                yield from texts(path, function, node.value, passed_on)


def functions(path: Path) -> list[Function]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, Function)]


def calls(function: Function) -> list[ast.Call]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def texts(path: Path, function: Function, value: ast.expr, passed_on: set[str]) -> Iterator[str]:
    """What an expression can be, but for None and the empty text."""
    if isinstance(value, ast.Constant):
        yield from [value.value] if isinstance(value.value, str) and value.value else []
    elif isinstance(value, ast.JoinedStr):
        yield "".join(map(filled, value.values))
    elif isinstance(value, ast.Name) and value.id.isupper():
        yield constant(value.id)
    elif isinstance(value, ast.Call) and ast.unparse(value.func) == "str":
        for error in errors(function, ast.unparse(value.args[0])):
            yield from raised(error)
    elif parts := alternatives(function, value):
        for part in parts:
            yield from texts(path, function, part, passed_on)
    elif not (is_parameter(function, value) or ast.unparse(value) in passed_on):
        raise UnknownReasonError(f"{path.name}: {function.name}: {ast.unparse(value)}")


def alternatives(function: Function, value: ast.expr) -> list[ast.expr]:
    """What else an expression can be; what is added to a text or cut off does not change its kind."""
    match value:
        case ast.BoolOp(values=values):
            return values
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case ast.BinOp(left=whole) | ast.Subscript(value=whole):
            return [whole]
        case ast.Name(id=name):
            return assigned(function, name)
    return []


def filled(part: ast.expr) -> str:
    """A part of a text: a constant's value, otherwise a number."""
    if isinstance(part, ast.FormattedValue):
        name = part.value
        return constant(name.id) if isinstance(name, ast.Name) and name.id.isupper() else "7"
    return str(part.value) if isinstance(part, ast.Constant) else ""


def is_parameter(function: Function, value: ast.expr) -> bool:
    """Whether the function takes a reason itself and passes it on: it is found where it is called."""
    names = [each.arg for each in function.args.args]
    taken = {sink.rpartition(".")[2] for sink in (*SINKS, *SGLANGS)}
    return isinstance(value, ast.Name) and value.id in names and function.name in taken


def assignments(function: Function) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is set to what in a function, one by one."""
    for node in ast.walk(function):
        if isinstance(node, ast.NamedExpr):
            yield node.target, node.value
        for target in node.targets if isinstance(node, ast.Assign) else ():
            assert isinstance(node, ast.Assign)
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield target, node.value


def assigned(function: Function, name: str) -> list[ast.expr]:
    """What a variable of a function is set to."""
    return [
        value for target, value in assignments(function) if isinstance(target, ast.Name) and target.id == name
    ]


def constant(name: str) -> str:
    """A text by the name that it has in our modules."""
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                assert isinstance(node.value, ast.Constant)
                return str(node.value.value)
    raise UnknownReasonError(name)


def errors(function: Function, name: str) -> set[str]:
    """The classes of an exception that has this name in the function."""
    caught = [
        node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name == name
    ]
    classes = [ast.unparse(handler.type) for handler in caught if handler.type]
    classes += [ast.unparse(made.func) for made in assigned(function, name) if isinstance(made, ast.Call)]
    if not classes:
        raise UnknownReasonError(f"{function.name}: {name}")
    return {each.strip(" ()") for every in classes for each in every.split(",")}


def raised(error: str) -> Iterator[str]:
    """The messages of an exception of ours: its own, or else what it is raised with."""
    own: list[str] = []
    given: list[str] = []
    for path in FILES:
        classes = [node for node in tree(path).body if isinstance(node, ast.ClassDef) and node.name == error]
        for function in (each for made in classes for each in made.body if isinstance(each, Function)):
            for call in calls(function):
                own += texts(path, function, call.args[0], set()) if is_super(call) else ()
    for path in () if own else FILES:
        for function in functions(path):
            for call in calls(function):
                given += texts(path, function, call.args[0], set()) if ast.unparse(call.func) == error else ()
    if not own + given:
        raise UnknownReasonError(f"nobody raises {error}")
    yield from own + given


def is_super(call: ast.Call) -> bool:
    return ast.unparse(call.func) == "super().__init__"
