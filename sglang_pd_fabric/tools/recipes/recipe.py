"""A model's description, and the commands of its servers. Nothing else knows a flag."""

import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sglang_pd_fabric.tools.recipes.settings import ROUTER, SERVER, VARIABLES
from sglang_pd_fabric.tools.tiny.config import MODELS as TINY_MODELS
from sglang_pd_fabric.tools.tiny.config import Model

Side = Literal["prefill", "decode"]
SIDES: tuple[Side, ...] = ("prefill", "decode")
MODELS = Path(__file__).parent / "models"
HTTP_PORT = 30000
BOOTSTRAP_PORT = 8998
ROUTER_PORT = 8000
PROVIDERS = {"efa": "efa", "connectx": "verbs"}

Flags = Mapping[str, str | int | float | bool]


class RecipeError(ValueError):
    """A description cannot be used; the message names file, field and value."""


@dataclass(frozen=True)
class Network:
    """Machines of one kind.

    Attributes:
        name: ``efa`` or ``connectx``.
        machine: for people.
        gpus, nics: of one machine.
    """

    name: str
    machine: str
    gpus: int
    nics: int

    @property
    def provider(self) -> str:
        """libfabric's provider."""
        return PROVIDERS[self.name]


@dataclass(frozen=True)
class Recipe:
    """What to start for a model.

    Attributes:
        name: of the file and of the folder in ``launch/``.
        title, checkpoint, note: for people, and what the servers load.
        tiny: the tiny checkpoint of the same kind (``sglang-pd-fabric tiny``).
        env: variables of every server.
        nodes: servers of each side, each on a machine of its own.
        flags: SGLang's flags of each side, without dashes; a false one is left out.
        networks: the kinds of machines to write files for.
    """

    name: str
    title: str
    checkpoint: str
    note: str
    tiny: Model
    env: Mapping[str, str]
    nodes: Mapping[Side, int]
    flags: Mapping[Side, Flags]
    networks: tuple[Network, ...]

    def server(self, side: Side, *, checkpoint: str | None = None) -> list[str]:
        """The command of a server. In a shell, ``$HOST`` is where it listens."""
        command = ["python3", "-m", "sglang.launch_server", "--model-path", checkpoint or self.checkpoint]
        command += ["--disaggregation-mode", side, "--disaggregation-transfer-backend", "fabric"]
        if side == "prefill":
            command += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)]
        command += ["--host", "0.0.0.0", "--port", str(HTTP_PORT), "--enable-metrics"]
        return command + arguments(self.flags[side])

    def router(self, hosts: Mapping[Side, Sequence[str]]) -> list[str]:
        """The command of the router for servers on these hosts."""
        command = ["python3", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
        for host in hosts["prefill"]:
            command += ["--prefill", f"http://{host}:{HTTP_PORT}", str(BOOTSTRAP_PORT)]
        for host in hosts["decode"]:
            command += ["--decode", f"http://{host}:{HTTP_PORT}"]
        return [*command, "--decode-policy", "round_robin", "--host", "0.0.0.0", "--port", str(ROUTER_PORT)]

    def variables(self, network: Network) -> dict[str, str]:
        """The environment of a server."""
        return {"SGLANG_PD_FABRIC_PROVIDER": network.provider, **self.env}


def arguments(flags: Flags) -> list[str]:
    """The flags as a command line has them."""
    words = []
    for name, value in flags.items():
        if value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def flags_of(command: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The flags of a command with their values, in order; what stands before the first is left out."""
    words = list(command)
    starts = [place for place, word in enumerate(words) if word.startswith("--")]
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        yield words[start], tuple(words[start + 1 : end])


def shell(command: Sequence[str], indent: str = "  ") -> str:
    """A command for a shell script: one flag with its values to a line. ``$NAME`` stays a variable."""
    lines: list[list[str]] = [[]]
    for word in command:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(f'"{word}"' if "$" in word else shlex.quote(word))
    return f" \\\n{indent}".join(" ".join(line) for line in lines)


def load(path: Path) -> Recipe:
    """Reads a description.

    Raises:
        RecipeError: a field is missing, there are more GPUs in its flags than in its machines, or nobody has
            said in ``settings.py`` why a flag or variable is set.
    """
    data: dict[str, Any] = tomllib.loads(path.read_text())
    try:
        common = data.get("flags", {})
        recipe = Recipe(
            path.stem,
            data["title"],
            data["checkpoint"],
            data["note"].strip(),
            data["tiny"],
            data.get("env", {}),
            {side: data[side]["nodes"] for side in SIDES},
            {side: {**common, **data[side]["flags"]} for side in SIDES},
            tuple(Network(name, **fields) for name, fields in data["networks"].items()),
        )
    except (KeyError, TypeError) as error:
        raise RecipeError(f"{path}: {error} is missing or wrong") from error
    if recipe.tiny not in TINY_MODELS:
        raise RecipeError(f"{path}: tiny={recipe.tiny}: {', '.join(TINY_MODELS)} are possible")
    _require_reasons(path, recipe)
    for network in recipe.networks:
        if network.name not in PROVIDERS:
            raise RecipeError(f"{path}: networks.{network.name}: {', '.join(PROVIDERS)} are possible")
        for side in SIDES:
            ranks = recipe.flags[side].get("tp-size", 1)
            if not isinstance(ranks, int) or not 1 <= ranks <= network.gpus:
                raise RecipeError(
                    f"{path}: {side}.flags.tp-size={ranks}, {network.machine} has {network.gpus} GPUs"
                )
    return recipe


def _require_reasons(path: Path, recipe: Recipe) -> None:
    servers = {flag for side in SIDES for flag, _values in flags_of(recipe.server(side))}
    router = {flag for flag, _values in flags_of(recipe.router({side: [side] for side in SIDES}))}
    unknown = (servers - SERVER.keys()) | (router - ROUTER.keys()) | (recipe.env.keys() - VARIABLES.keys())
    if unknown:
        raise RecipeError(
            f"{path}: {', '.join(sorted(unknown))} is not in recipes/settings.py: say why it is set"
        )


def load_all() -> list[Recipe]:
    """Every recipe that we ship."""
    return [load(path) for path in sorted(MODELS.glob("*.toml"))]
