"""What the pages tell people to type can be typed, and what they point at is there.

Every command in README and docs is parsed by the parser that would take it: ours, SGLang's, its router's.
Those that need neither a server nor minutes are run. Settings and metrics are compared with the code.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import yaml
from documents import ROOT, Block, Command, Page, documents, pages

from sglang_pd_fabric.settings import PREFIX, Settings, load_settings, variable
from sglang_pd_fabric.tools import cli
from sglang_pd_fabric.tools.demo.main import parser as demo_parser
from sglang_pd_fabric.tools.demo.traffic import parser as traffic_parser

PAGES = {page.name: page for page in pages()}
BLOCKS = {
    f"{name}-{number}": block
    for name, page in PAGES.items()
    for number, block in enumerate(page.command_blocks, 1)
}
EACH_PAGE = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
EACH_BLOCK = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
# Blocks in these are no commands of a shell.
OTHER_LANGUAGES = {"text", "mermaid", "json", "yaml", "python", "promql"}
# On every machine, or so small a matter that nobody has to be told.
ORDINARY = {"openssl", "chmod", "curl", "cd"}
# Quick, without a server, and nothing is left behind but files in the folder where they run.
QUICK = ("--version", "doctor", "topo", "tiny", "recipes")
# Where names of files in backticks begin.
FOLDERS = [ROOT, ROOT / "docs", *(ROOT / "sglang_pd_fabric" / name for name in ("", "fabric", "tools/bench"))]


def parsed(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """Fails if the words cannot be parsed. What only prints something (``--help``) is fine."""
    code: object = 0
    try:
        parser.parse_args(words)
    except SystemExit as end:
        code = end.code
    assert not code, f"{parser.prog} does not take {words}"


def launch_server(words: list[str]) -> None:
    from sglang.srt.server_args import ServerArgs, add_disagg_transfer_backend_choices

    add_disagg_transfer_backend_choices(["fabric"])
    parser = argparse.ArgumentParser("sglang.launch_server")
    ServerArgs.add_cli_args(parser)
    parsed(parser, words)


def launch_router(words: list[str]) -> None:
    from sglang_router.launch_router import parse_router_args

    assert parse_router_args(words).pd_disaggregation


def pip(words: list[str]) -> None:
    """``pip install 'sglang-pd-fabric[a,b]'``: the extras exist."""
    action, *packages = words
    assert action == "install"
    has = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package in packages:
        if match := re.fullmatch(r"(?:sglang-pd-fabric|\.)\[(.*)\]", package):
            assert set(match[1].split(",")) <= set(has), package


def pytest_(words: list[str]) -> None:
    for word in words:
        assert not word.startswith("tests") or (ROOT / word.partition("::")[0]).exists(), word


def make(words: list[str]) -> None:
    flag, folder, *rest = words
    makefile = (ROOT / folder / "Makefile").read_text()
    assert flag == "-C"
    assert all(re.search(rf"^{re.escape(word)}\s*:", makefile, re.M) for word in rest if "=" not in word)


def python(words: list[str]) -> None:
    first, *rest = words
    if first == "-c":
        compile(rest[0], "a command of the docs", "exec")
    elif first == "-m":
        MODULES[rest[0]](rest[1:])
    elif first != "-":  # a here document
        check(Command({}, words))


def file_argument(words: list[str]) -> None:
    """``bash launch/...``, ``kubectl apply -f launch/...``: files of ours that are named exist."""
    assert all((ROOT / word).is_file() for word in words if word.startswith("launch/")), words


MODULES: dict[str, Callable[[list[str]], None]] = {
    "pytest": pytest_,
    "pip": pip,
    "venv": lambda _words: None,
    "sglang.launch_server": launch_server,
    "sglang_router.launch_router": launch_router,
}
PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "sglang-pd-fabric": lambda words: parsed(cli.make_parser(), words),
    "launch/local": lambda words: parsed(demo_parser(), words),
    "launch/traffic": lambda words: parsed(traffic_parser(), words),
    "launch/setup": lambda _words: None,
    "python": python,
    "python3": python,
    "pip": pip,
    "pytest": pytest_,
    "make": make,
    "mkdocs": file_argument,
    "bash": file_argument,
}


def program(command: Command) -> str:
    """The name of what would run: ``.venv/bin/python`` is ``python``, ``launch/local`` keeps its folder."""
    name = command.words[0]
    return name.rpartition("/")[2] if "bin/" in name else name


def check(command: Command) -> None:
    """Fails where a command of ours, or of SGLang, would not be understood."""
    load_settings({name: value for name, value in command.variables.items() if name.startswith(PREFIX)})
    if not command.words:
        return
    name = program(command)
    if name.startswith(("launch/", "tests/")):
        assert os.access(ROOT / name, os.X_OK), name
    if name in PROGRAMS:
        PROGRAMS[name](command.words[1:])
    else:
        file_argument(command.words)


@EACH_BLOCK
def test_every_command_is_understood_by_what_would_run_it(block: Block) -> None:
    assert block.commands
    for command in block.commands:
        check(command)


@EACH_BLOCK
def test_a_block_that_cannot_run_here_says_so(block: Block) -> None:
    named = {program(command) for command in block.commands if command.words}
    foreign = {n for n in named - set(PROGRAMS) - ORDINARY if not n.startswith(("launch/", "build/"))}
    assert block.not_here or not foreign, f"not on every machine: {foreign}"


@pytest.mark.parametrize(
    "text",
    [
        "sglang-pd-fabric doktor",
        "sglang-pd-fabric topo --svgg x",
        "sglang-pd-fabric soak --provider verbs",
        "launch/local --prefil 2",
        "launch/no-such-script",
        "bash launch/deepseek-r1/efa/no-such.sh",
        "pip install 'sglang-pd-fabric[no-such-extra]'",
        "SGLANG_PD_FABRIC_NO_SUCH=1 launch/local",
        "SGLANG_PD_FABRIC_STALL_S=0 launch/local",
        "python -m sglang.launch_server --model-path x --no-such-flag",
        "pytest tests/unit/test_no_such.py",
        "make -C tests/native no-such-target",
    ],
)
def test_a_command_that_is_wrong_is_noticed(text: str) -> None:
    (command,) = Block("sh", False, text).commands
    with pytest.raises((AssertionError, ValueError)):
        check(command)


@EACH_PAGE
def test_blocks_name_their_language(page: Page) -> None:
    assert {block.language for block in page.blocks} <= OTHER_LANGUAGES | {"", "sh"}


@EACH_PAGE
def test_commands_in_a_sentence_exist(page: Page) -> None:
    """Such as `sglang-pd-fabric bench overlap`."""
    for text in page.code:
        if text.startswith(("sglang-pd-fabric ", "launch/local ", "launch/traffic ")):
            for command in Block("sh", False, text).commands:
                check(command)


@EACH_PAGE
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links:
        if link.startswith(("https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.path.parent / name).resolve() if name else page.path
        assert target.exists(), link
        assert not anchor or anchor in Page(target).anchors, link


@EACH_PAGE
def test_files_that_are_named_exist(page: Page) -> None:
    """What looks like one of ours in backticks: `docs/security.md`, `integration/hnd.py`, `launch/setup`."""
    for text in page.code:
        if re.fullmatch(r"(docs|launch|tests|integration|messenger|fabric|core|tools)/[\w./-]+", text):
            assert any((folder / text).exists() for folder in FOLDERS), text


def is_quick(words: list[str]) -> bool:
    return words[:2] == ["python", "-c"] or (
        words[:1] == ["sglang-pd-fabric"] and words[1] in QUICK and "--tiny" not in words
    )


def quick_commands() -> list[Command]:
    """All commands of the pages that are quick, and the Python that makes what they read; each once."""
    all_of_them = [c for block in BLOCKS.values() if not block.not_here for c in block.commands]
    return list({" ".join(c.words): c for c in all_of_them if is_quick(c.words)}.values())


@pytest.mark.parametrize("command", quick_commands(), ids=lambda command: " ".join(command.words)[:60])
def test_quick_commands_run(command: Command, scratch: Path) -> None:
    words = [word.replace("/tmp/", f"{scratch}/") for word in command.words]
    ours = ["-m", "sglang_pd_fabric.tools.cli"] if words[0] == "sglang-pd-fabric" else []
    path = os.pathsep.join(str(ROOT / part) for part in ("", command.variables.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, *ours, *words[1:]],
        cwd=scratch,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    # The doctor may well find this machine ill, and says so by 1.
    assert done.returncode == 0 or (done.returncode == 1 and "doctor" in words), done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which commands may write files, with the folders that the pages' commands write into."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "docs").mkdir()
    return folder


def first_column(page: str, pattern: str) -> list[list[str]]:
    """Rows of a page's tables whose first cell is a name in backticks that matches."""
    rows = [row for table in PAGES[page].tables for row in table]
    return [row for row in rows if re.fullmatch(rf"`{pattern}`", row[0])]


@pytest.mark.parametrize("page", ["README.md", "docs/tuning.md"])
def test_the_table_of_settings_is_that_of_the_code(page: str) -> None:
    said = {row[0].strip("`"): row[1].strip("`") for row in first_column(page, rf"{PREFIX}\w+")}
    assert said == {variable(entry.name): str(entry.default) for entry in fields(Settings)}


def test_every_metric_is_documented_and_no_other() -> None:
    """Names as they stand on ``/metrics``, with their kinds and labels."""
    from prometheus_client import REGISTRY

    import sglang_pd_fabric.integration.metrics  # noqa: F401

    said = {
        row[0].strip("`"): (row[1], set(re.findall(r"`(\w+)`", row[2])))
        for row in first_column("docs/metrics.md", r"sglang_pd_fabric\W?\w+")
    }
    made = {}
    for collector, names in REGISTRY._collector_to_names.items():
        if names[0].startswith("sglang_pd_fabric"):
            suffix = "_total" if collector._type == "counter" else ""
            made[names[0] + suffix] = (collector._type, set(collector._labelnames))
    assert made
    assert said == made


def test_the_kinds_of_labels_are_those_of_the_code() -> None:
    from sglang_pd_fabric.integration.failures import KINDS
    from sglang_pd_fabric.messenger.seal import Dropped

    kinds = {"the message": set(get_args(Dropped)), "what was wrong": set(KINDS)}
    tables = {rows[0][1]: rows[1:] for rows in PAGES["docs/metrics.md"].tables if rows[0][1] in kinds}
    assert {head: {row[0].strip("`") for row in rows} for head, rows in tables.items()} == kinds


def test_the_table_of_what_a_tiny_recipe_replaces_is_that_of_the_code() -> None:
    from sglang_pd_fabric.tools.recipes.settings import (
        ADDED_FLAGS,
        ADDED_VARIABLES,
        ROUTER,
        SERVER,
        VARIABLES,
    )

    (table,) = (rows for rows in PAGES["docs/recipes.md"].tables if rows[0][0] == "flag or variable")
    said = [name for row in table[1:] for name in re.findall(r"`([^`]+)`", row[0])]
    settings = SERVER | ROUTER | VARIABLES
    replaced = {name for name, setting in settings.items() if setting.replaced}
    assert sorted(said) == sorted(replaced | ADDED_FLAGS.keys() | ADDED_VARIABLES.keys() | {"servers"})


def messages() -> list[str]:
    """All texts in our Python: what is put into them is left out, neighbours are one."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "sglang_pd_fabric").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    whole = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    parts = [node.values for node in nodes if isinstance(node, ast.JoinedStr)]
    return whole + ["{}".join(p.value for p in each if isinstance(p, ast.Constant)) for each in parts]


def test_messages_that_are_explained_are_those_of_the_code() -> None:
    tables = [
        table for table in PAGES["docs/operating.md"].tables if table[0][0] in ("the message has", "line")
    ]
    said = [text for table in tables for row in table[1:] for text in re.findall(r"`([^`]+)`", row[0])]
    patterns = {text: ".*".join(map(re.escape, text.split("..."))) for text in said}
    made = messages()
    unknown = [t for t, pattern in patterns.items() if not any(re.search(pattern, m, re.S) for m in made)]
    assert len(said) > 20
    assert not unknown


def test_the_site_has_every_page_once() -> None:
    def leaves(node: object) -> list[str]:
        if isinstance(node, str):
            return [node]
        below = node.values() if isinstance(node, dict) else node
        return [leaf for each in below for leaf in leaves(each)]

    listed = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == [path.name for path in documents()]
