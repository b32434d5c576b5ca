"""The command ``sglang-pd-fabric``: one subcommand for each tool, each in its own folder."""

import argparse
import sys
from collections.abc import Sequence

from sglang_pd_fabric import __version__
from sglang_pd_fabric.fabric.availability import Machine, features, offered, problems
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.library import header_version, open_library
from sglang_pd_fabric.fabric.profiles import PROFILES
from sglang_pd_fabric.settings import SettingError, load_settings
from sglang_pd_fabric.tools.bench import main as bench
from sglang_pd_fabric.tools.doctor import main as doctor
from sglang_pd_fabric.tools.explain import main as explain
from sglang_pd_fabric.tools.plan import main as plan
from sglang_pd_fabric.tools.recipes import main as recipes
from sglang_pd_fabric.tools.soak import main as soak
from sglang_pd_fabric.tools.timeline import main as timeline
from sglang_pd_fabric.tools.tiny import main as tiny
from sglang_pd_fabric.tools.topo import main as topo


def version_text() -> str:
    """Our version, the libfabric that would be used, and the providers that it offers on this machine.

    Raises:
        FabricError: there is no libfabric, or it cannot say what it offers.
    """
    library = open_library(load_settings().libfabric or None)
    found, machine = library.providers(), Machine.read()
    lines = [
        f"sglang-pd-fabric {__version__}",
        f"libfabric {'.'.join(map(str, library.version))} at {library.path} ({library.origin}); "
        f"compiled against {'.'.join(map(str, header_version()))} headers",
        "SGLANG_PD_FABRIC_PROVIDER:",
    ]
    for name, profile in PROFILES.items():
        domains = dict.fromkeys(info.domain for info in offered(profile, found))
        why = problems(profile, library.version, found, machine)
        lines.append(f"  {name:12s} {f'not here: {why[0]}' if why else ', '.join(domains)}")
        if why:
            continue
        for feature, (available, reason) in features(profile, library.version, found).items():
            lines.append(f"    {'yes' if available else 'no ':3s} {feature}: {reason}")
    return "\n".join(lines)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_unused: object) -> None:
        try:
            print(version_text())
        except (FabricError, SettingError) as error:
            parser.exit(1, f"sglang-pd-fabric {__version__}\n{error}\n")
        parser.exit()


def make_parser() -> argparse.ArgumentParser:
    """The whole command line: what is parsed has ``run``, which takes it and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="sglang-pd-fabric",
        description="KV cache transfer from prefill to decode for SGLang, over libfabric.",
    )
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="show our version, the libfabric found and its providers"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for tool, name, purpose in (
        (tiny, "tiny", "write a tiny seeded checkpoint whose answers depend on every KV page"),
        (bench, "bench", "measure paged writes: our engine, bare libfabric, memcpy, the peers"),
        (doctor, "doctor", doctor.PURPOSE),
        (recipes, "recipes", recipes.PURPOSE),
        (topo, "topo", "show which NICs and cores each GPU would use, and why"),
        (explain, "explain", explain.PURPOSE),
        (timeline, "timeline", timeline.PURPOSE),
        (soak, "soak", soak.PURPOSE),
        (plan, "plan", plan.PURPOSE),
    ):
        command = commands.add_parser(name, help=purpose, description=purpose)
        command.set_defaults(run=tool.run)
        tool.add_arguments(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the command line and runs the tool that it names."""
    options = make_parser().parse_args(arguments)
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
