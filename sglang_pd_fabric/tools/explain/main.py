"""`sglang-pd-fabric explain`: reads the metrics of running servers twice and says which phase is slow.

Exit status: 0 when the servers could be read, whatever the verdict; 1 when not.
"""

import argparse
import json
import math
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from sglang_pd_fabric.tools.explain.figures import Figures, of_cluster, of_ordinary
from sglang_pd_fabric.tools.explain.page import Page, Window
from sglang_pd_fabric.tools.explain.report import to_data, to_text
from sglang_pd_fabric.tools.explain.rules import Goals, judge

PURPOSE = "ask running servers which phase of a request is slow, by their metrics"
TIMEOUT_S = 10.0


class UnreadableError(Exception):
    """A server gave no page of metrics; the message says which and what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's flags to a parser."""
    add = parser.add_argument
    add("--prefill", nargs="+", default=[], metavar="URL", help="prefill servers, like http://host:30000")
    add("--decode", nargs="+", default=[], metavar="URL", help="decode servers")
    add("--ordinary", nargs="+", default=[], metavar="URL", help="in their place: servers that do both")
    add("--router", nargs="+", default=[], metavar="URL", help="where routers show their metrics")
    add("--seconds", type=_seconds, default=10.0, metavar="N", help="time between two readings (default: 10)")
    add("--ttft-ms", type=_seconds, metavar="MS", help="the time to first token that you want")
    add("--tpot-ms", type=_seconds, metavar="MS", help="the time from token to token that you want")
    add("--watch", action="store_true", help="go on with the next window, until Ctrl-C")
    add("--json", action="store_true", help="print JSON, one line for each window")


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


class Servers(NamedTuple):
    """Base URLs by role."""

    prefill: Sequence[str]
    decode: Sequence[str]
    router: Sequence[str]
    ordinary: Sequence[str]


class Reading(NamedTuple):
    """The pages of all servers, in the order of ``Servers``, and when they came (monotonic clock)."""

    pages: Sequence[Sequence[Page]]
    at: float


def read(servers: Servers) -> Reading:
    """One reading.

    Raises:
        UnreadableError: a server cannot be reached, or shows no metrics. A router may show none.
    """
    pages = [
        [page(url, optional=urls is servers.router) for url in urls]
        for urls in (servers.prefill, servers.decode, servers.router, servers.ordinary)
    ]
    return Reading(pages, time.monotonic())


def page(url: str, *, optional: bool = False) -> Page:
    """The metrics of one server; an empty page where an optional one has none.

    Raises:
        UnreadableError: see ``read``.
    """
    full = f"{url.rstrip('/')}/metrics"
    try:
        with urllib.request.urlopen(full, timeout=TIMEOUT_S) as answer:
            return Page.parse(answer.read().decode())
    except urllib.error.HTTPError as error:
        if optional:
            return Page({})
        raise UnreadableError(f"{full}: HTTP {error.code}; start the server with --enable-metrics") from error
    except (OSError, ValueError) as error:
        raise UnreadableError(f"{full}: {error}; give the base URL of a running server") from error


def compare(servers: Servers, before: Reading, after: Reading) -> Figures:
    """What happened between two readings."""
    prefill, decode, router, ordinary = (
        Window(tuple(zip(first, second, strict=True)), after.at - before.at)
        for first, second in zip(before.pages, after.pages, strict=True)
    )
    if servers.ordinary:
        return of_ordinary(ordinary)
    hosts = [{urlsplit(url).hostname for url in urls} for urls in (servers.prefill, servers.decode)]
    return of_cluster(prefill, decode, router, shared_host=bool(hosts[0] & hosts[1]))


def run(options: argparse.Namespace) -> int:
    """Carry out the command for parsed flags."""
    servers = Servers(options.prefill, options.decode, options.router, options.ordinary)
    if bool(servers.ordinary) == bool(servers.prefill or servers.decode) or (
        not servers.ordinary and not (servers.prefill and servers.decode)
    ):
        print("give --prefill and --decode, or --ordinary alone", file=sys.stderr)
        return 1
    goals = Goals(*(ms / 1e3 if ms is not None else None for ms in (options.ttft_ms, options.tpot_ms)))
    try:
        before = read(servers)
        while True:
            time.sleep(options.seconds)
            after = read(servers)
            show(compare(servers, before, after), goals, as_json=options.json)
            if not options.watch:
                return 0
            before = after
    except UnreadableError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def show(figures: Figures, goals: Goals, *, as_json: bool) -> None:
    """Prints the verdicts and the numbers of one window."""
    verdicts = judge(figures, goals)
    if as_json:
        print(json.dumps(to_data(figures, verdicts)), flush=True)
    else:
        print(f"{to_text(figures, verdicts)}\n", flush=True)
