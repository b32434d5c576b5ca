"""The shape of the house: imports point one way, files stay small, importing us needs little."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sglang_pd_fabric"
# Each layer may import itself and what stands after it. ``settings`` is for the two layers on top.
ORDER = ["tools", "integration", "settings", "messenger", "fabric"]
FOREIGN = {
    "fabric": {"sglang", "torch", "zmq", "msgspec"},
    "messenger": {"sglang", "torch", "cffi"},
    "settings": {"sglang", "torch"},
}
MAX_LINES = 400


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def files(layer: str) -> list[Path]:
    return [PACKAGE / "settings.py"] if layer == "settings" else sorted((PACKAGE / layer).rglob("*.py"))


@pytest.mark.parametrize("layer", ORDER)
def test_imports_point_one_way(layer: str) -> None:
    forbidden = tuple(f"sglang_pd_fabric.{name}" for name in ORDER[: ORDER.index(layer)])
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files(layer)
        for name in imported(path)
        if name.startswith(forbidden) or name.split(".")[0] in FOREIGN.get(layer, ())
    }
    assert not wrong


def test_importing_the_package_and_its_lower_layers_loads_neither_sglang_nor_torch() -> None:
    code = (
        "import sys\n"
        "import sglang_pd_fabric.messenger.prefill, sglang_pd_fabric.messenger.decode\n"
        "import sglang_pd_fabric.integration.plugin, sglang_pd_fabric.integration.hooks\n"
        "import sglang_pd_fabric.tools.cli\n"
        "heavy = ('sglang', 'torch', 'transformers', 'prometheus_client')\n"
        "print(*(name for name in heavy if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_no_file_is_longer_than_a_person_can_hold_in_the_head() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for folder in (PACKAGE, ROOT / "tests")
        for path in folder.rglob("*")
        if path.suffix in {".py", ".c", ".h"} and path.name != "_core.c"
        if (count := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert not long


def test_every_python_file_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for folder in (PACKAGE, ROOT / "tests")
        for path in folder.rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent
