"""Records /metrics pages of real servers, in three minutes. From the root, with names of situations or all:

    PYTHONPATH=tests/common python -m tests.unit.explain.record FOLDER [SITUATION ...]

One prefill, one decode and an ordinary server with the tiny model, on the CPU. Of each situation the pages
before and after twelve seconds of it are kept. ``recordings`` has SGLang 0.5.23 on two cores.
"""

import gzip
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from sglang_pd_fabric.tools.demo.cluster import Ordinary
from sglang_pd_fabric.tools.demo.servers import ServerOptions
from sglang_pd_fabric.tools.demo.traffic import KINDS, Askers, Kind, Traffic
from tests.sglang.slow_link import Linked

SECONDS = 12.0
STEADY, BURST = Kind((Askers(4, 200, 24),), ""), Kind((Askers(32, 300, 24),), "")
# What the pair is asked, and whether its link is slow then.
PAIR = {
    "steady": (STEADY, False),
    "longpd": (KINDS["long"], False),
    "burst": (BURST, False),
    "slow": (KINDS["steady"], True),
}


def record(folder: Path, name: str, url: str, pages: Mapping[str, str], kind: Kind) -> None:
    """Keeps the pages before and after the traffic."""
    with Traffic(url, kind) as traffic:
        keep(folder, f"{name}-1", pages)
        time.sleep(SECONDS)
        keep(folder, f"{name}-2", pages)
    assert not traffic.failure, traffic.failure


def keep(folder: Path, name: str, pages: Mapping[str, str]) -> None:
    for role, url in pages.items():
        answer = httpx.get(f"{url}/metrics", timeout=30, follow_redirects=True)
        (folder / f"{name}-{role}.txt.gz").write_bytes(gzip.compress(answer.content, 9, mtime=0))


def main() -> None:
    folder, logs, wanted = Path(sys.argv[1]), Path(tempfile.mkdtemp()), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    if not wanted or "long" in wanted:
        with Ordinary(ServerOptions(), logs, print) as ordinary:
            record(folder, "long", ordinary.url, {"ordinary": ordinary.url}, KINDS["long"])
    situations = {name: how for name, how in PAIR.items() if not wanted or name in wanted}
    if situations:
        with Linked(logs) as pair:
            pages = {"prefill": pair.prefill.url, "decode": pair.decode.url}
            for name, (kind, slow) in situations.items():
                record(folder, name, pair.slow_url if slow else pair.url, pages, kind)


if __name__ == "__main__":
    main()
