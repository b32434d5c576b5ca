"""Checks of SGLang, of our hooks into it, of our settings and of the clock."""

import ast
import ctypes
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

from sglang_pd_fabric import __version__
from sglang_pd_fabric.integration.hooks import HOOKS
from sglang_pd_fabric.integration.version import UnsupportedSGLangError, require_supported
from sglang_pd_fabric.tools.doctor.finding import Finding, Level
from sglang_pd_fabric.tools.doctor.place import Place, installed

GROUP = "sglang.srt.plugins"
INSTALL = "pip install 'sglang-pd-fabric[sglang]'"
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised


def sglang(_place: Place) -> Iterator[Finding]:
    """The version, our entry point, and the functions that our hooks need. SGLang is not imported."""
    version = installed("sglang")
    yield Finding("SGLang", Level.OK, f"sglang-pd-fabric {__version__}, Python {sys.version.split()[0]}")
    if not version:
        yield Finding("SGLang", Level.FAIL, "it is not installed in this environment", INSTALL)
        return
    try:
        require_supported(version)
    except UnsupportedSGLangError as error:
        yield Finding("SGLang", Level.FAIL, f"sglang {version}", str(error))
        return
    names = [entry.name for entry in importlib.metadata.entry_points(group=GROUP)]
    if "fabric" not in names:
        yield Finding(
            "SGLang",
            Level.FAIL,
            f"sglang {version} finds no plugin of ours",
            "install us with pip, in the same environment",
        )
        return
    missing = [hook.target for hook in HOOKS if not defines(hook.target)]
    if missing:
        yield Finding(
            "SGLang", Level.FAIL, f"this sglang has no {', '.join(missing)}", f"it was changed: {INSTALL}"
        )
        return
    yield Finding("SGLang", Level.OK, f"sglang {version}, plugin found, {len(HOOKS)} places for hooks found")
    router = installed("sglang-router")
    todo = "" if router else INSTALL
    yield Finding(
        "SGLang", Level.OK if router else Level.WARN, f"sglang-router {router or 'is not installed'}", todo
    )


def defines(target: str) -> bool:
    """Whether the installed file of a dotted name defines or imports it, by its source."""
    parts = target.split(".")
    for length in range(len(parts) - 1, 0, -1):
        path = _source("/".join(parts[:length]) + ".py")
        if path is not None:
            return _defined(ast.parse(path.read_text()).body, parts[length:])
    return False


def _source(relative: str) -> Path | None:
    for file in importlib.metadata.files("sglang") or ():
        if str(file) == relative:
            return Path(str(file.locate()))
    return None


def _defined(body: list[ast.stmt], names: list[str]) -> bool:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == names[0]:
            return len(names) == 1 or _defined(node.body, names[1:])
        if isinstance(node, ast.Import | ast.ImportFrom):
            known = [alias.asname or alias.name for alias in node.names]
            if len(names) == 1 and names[0] in known:
                return True
    return False


def clock(_place: Place) -> Iterator[Finding]:
    """Time stamps of several hosts are compared in timelines, deadlines are not."""
    timex = ctypes.create_string_buffer(256)  # struct timex with modes 0: only asks
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state in (-1, _TIME_ERROR):
        todo = "start chrony or systemd-timesyncd: otherwise time stamps of two hosts cannot be compared"
        yield Finding("clock", Level.WARN, "the kernel does not take it for synchronised", todo)
    else:
        yield Finding("clock", Level.OK, "synchronised")
