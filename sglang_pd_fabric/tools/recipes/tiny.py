"""A recipe at tiny size: the same commands, with the values replaced that ``settings.py`` says."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_pd_fabric.tools.demo.processes import Spec
from sglang_pd_fabric.tools.demo.servers import HOST, Ports
from sglang_pd_fabric.tools.recipes.recipe import SIDES, Network, Recipe, Side, flags_of
from sglang_pd_fabric.tools.recipes.settings import (
    ADDED_FLAGS,
    ADDED_VARIABLES,
    ROUTER,
    SERVER,
    VARIABLES,
    Setting,
)

Values = tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """One value that the tiny form has in another's place.

    Attributes:
        where: ``prefill``, ``decode`` or ``router``.
        name: of the flag or variable.
        full, tiny: the values; ``full`` is empty where the recipe has none.
        why: it cannot stay.
    """

    where: str
    name: str
    full: str
    tiny: str
    why: str


@dataclass(frozen=True)
class Tiny:
    """Servers and router of a recipe's tiny form, and everything in which they differ from the recipe."""

    prefills: tuple[Spec, ...]
    decodes: tuple[Spec, ...]
    router: Spec
    changes: tuple[Change, ...]


def _shrunk(
    where: str, command: Sequence[str], table: Mapping[str, Setting], given: Mapping[str, Sequence[Values]]
) -> tuple[tuple[str, ...], list[Change]]:
    """The tiny form of a command, and what is different in it.

    ``given`` has the values that are only known now, for each flag in the order of its appearances.
    """
    left = {flag: iter(values) for flag, values in given.items()}
    program = command[1 : command.index(next(flags_of(command))[0])]
    words, changes = [sys.executable, *program], []
    for flag, full in flags_of(command):
        setting = table[flag]
        values = next(left[flag]) if setting.given else tuple(map(setting.tiny or str, full))
        words += [flag, *values]
        if values != full:
            changes.append(Change(where, flag, " ".join(full), " ".join(values), setting.tiny_why))
    return tuple(words), changes


def _variables(recipe: Recipe, network: Network, side: Side) -> tuple[dict[str, str], list[Change]]:
    changes, env = [], {}
    for name, full in recipe.variables(network).items():
        setting = VARIABLES[name]
        env[name] = setting.tiny(full) if setting.tiny else full
        if env[name] != full:
            changes.append(Change(side, name, full, env[name], setting.tiny_why))
    for name, (value, why) in ADDED_VARIABLES.items():
        env[name] = value
        changes.append(Change(side, name, "", value, why))
    return env, changes


def tiny(
    recipe: Recipe,
    network: Network,
    checkpoint: Path,
    ports: Mapping[Side, Sequence[Ports]],
    router_port: int,
) -> Tiny:
    """The tiny form of a recipe.

    Args:
        recipe, network: which.
        checkpoint: a tiny one, of the kind that ``recipe.tiny`` says.
        ports: of each server; as many servers as ports. Prefills have bootstrap ports.
        router_port: where clients ask.
    """
    specs: dict[Side, tuple[Spec, ...]] = {}
    changes: list[Change] = []
    for side in SIDES:
        env, changed = _variables(recipe, network, side)
        for index, port in enumerate(ports[side]):
            given: dict[str, list[Values]] = {
                "--model-path": [(str(checkpoint),)],
                "--port": [(str(port.http),)],
                "--disaggregation-bootstrap-port": [(str(port.bootstrap),)],
            }
            command, flags = _shrunk(side, recipe.server(side), SERVER, given)
            for flag, (value, why) in ADDED_FLAGS.items():
                command += (flag, value)
                flags.append(Change(side, flag, "", value, why))
            spec = Spec(f"{side}-{index}", command, env, f"http://{HOST}:{port.http}")
            specs[side] = (*specs.get(side, ()), spec)
            changes += [] if index else [*changed, *flags]
        if recipe.nodes[side] != len(ports[side]):
            servers = str(recipe.nodes[side]), str(len(ports[side]))
            changes.append(Change(side, "servers", *servers, "the memory of this machine"))
    hosts = {side: [f"{side}-{index}" for index in range(len(ports[side]))] for side in SIDES}
    urls: dict[str, list[Values]] = {
        "--prefill": [(f"http://{HOST}:{port.http}", str(port.bootstrap)) for port in ports["prefill"]],
        "--decode": [(f"http://{HOST}:{port.http}",) for port in ports["decode"]],
        "--port": [(str(router_port),)],
    }
    command, flags = _shrunk("router", recipe.router(hosts), ROUTER, urls)
    router = Spec("router", command, {}, f"http://{HOST}:{router_port}")
    return Tiny(specs["prefill"], specs["decode"], router, (*changes, *flags))
