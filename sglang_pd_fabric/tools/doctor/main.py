"""`sglang-pd-fabric doctor`: one screen, a line for each thing that a server depends on.

Exit status: 0 when a server can start (warnings or not), 1 when something has to be fixed first.
"""

import argparse
import json
import sys
from collections.abc import Iterator

from sglang_pd_fabric.settings import SettingError, load_settings
from sglang_pd_fabric.tools.doctor import memory, network, software
from sglang_pd_fabric.tools.doctor.finding import Finding, Level, to_data, to_text, worst
from sglang_pd_fabric.tools.doctor.place import Place

PURPOSE = "check whether this machine can serve, and say what to change"
CHECKS = (
    software.sglang,
    network.libfabric,
    network.nics,
    network.addresses,
    memory.gpus,
    memory.limits,
    memory.shared,
    memory.pages,
    software.clock,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def examine(place: Place) -> Iterator[Finding]:
    """Everything, in the order of the screen. A check that breaks is a finding, not an end."""
    for check in CHECKS:
        try:
            yield from check(place)
        except Exception as error:
            name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
            yield Finding(
                "doctor", Level.WARN, f"the check {name} could not be made: {error!r}", "please report it"
            )


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    try:
        place = Place.here(load_settings())
    except SettingError as error:
        print(error, file=sys.stderr)
        return 1
    findings = list(examine(place))
    print(json.dumps(to_data(findings), indent=2) if options.json else to_text(findings))
    return int(worst(findings) is Level.FAIL)
