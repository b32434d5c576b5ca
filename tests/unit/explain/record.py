"""Records /metrics pages of real servers: ``python -m tests.unit.explain.record FOLDER`` (two minutes).

One prefill, one decode and an ordinary server with the tiny model, on the CPU. Of each situation the pages
before and after twelve seconds of it are kept. ``recordings`` has SGLang 0.5.23 on two cores.
"""

import gzip
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import httpx

from sglang_pd_fabric.tools.demo.client import ask_all
from sglang_pd_fabric.tools.demo.cluster import Cluster, ClusterOptions, Ordinary
from sglang_pd_fabric.tools.demo.prompts import LONGEST, Question, text
from sglang_pd_fabric.tools.demo.servers import ServerOptions

SECONDS = 12.0


def stream(name: str, length: int, tokens: int) -> Question:
    return Question(
        name, text(length, zlib.crc32(name.encode())), stream=True, answer_tokens=tokens, logprobs=False
    )


def keep_asking(url: str, make: Callable[[int], list[Question]], at_once: int, end: threading.Event) -> None:
    """Asks and asks, until told to stop."""
    turn = 0
    while not end.is_set():
        turn += 1
        failed = [answer.error for answer in ask_all(url, make(turn), at_once) if answer.error]
        if failed:
            print(failed[0], file=sys.stderr)


def steady(turn: int) -> list[Question]:
    return [stream(f"s{turn}-{index}", 200, 24) for index in range(4)]


def burst(turn: int) -> list[Question]:
    return [stream(f"b{turn}-{index}", 300, 24) for index in range(32)]


def long_one(turn: int) -> list[Question]:
    return [stream(f"l{turn}", LONGEST, 2)]


def streams(turn: int) -> list[Question]:
    return [replace(stream(f"t{turn}-{index}", 40, 200), ignore_eos=True) for index in range(2)]


Traffic = list[tuple[Callable[[int], list[Question]], int]]


def record(folder: Path, name: str, url: str, pages: Mapping[str, str], traffic: Traffic) -> None:
    """Keeps the pages before and after the traffic."""
    end = threading.Event()
    threads = [
        threading.Thread(target=keep_asking, args=(url, make, at_once, end)) for make, at_once in traffic
    ]
    for thread in threads:
        thread.start()
    time.sleep(3)
    keep(folder, f"{name}-1", pages)
    time.sleep(SECONDS)
    keep(folder, f"{name}-2", pages)
    end.set()
    for thread in threads:
        thread.join()


def keep(folder: Path, name: str, pages: Mapping[str, str]) -> None:
    for role, url in pages.items():
        answer = httpx.get(f"{url}/metrics", timeout=30, follow_redirects=True)
        (folder / f"{name}-{role}.txt.gz").write_bytes(gzip.compress(answer.content, 9, mtime=0))


def main() -> None:
    folder, logs = Path(sys.argv[1]), Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    with Ordinary(ServerOptions(), logs, print) as ordinary:
        record(folder, "long", ordinary.url, {"ordinary": ordinary.url}, [(streams, 2), (long_one, 1)])
    with Cluster(ClusterOptions(), logs, print) as cluster:
        pages = {"prefill": cluster.prefills[0].url, "decode": cluster.decodes[0].url}
        record(folder, "steady", cluster.url, pages, [(steady, 4)])
        record(folder, "longpd", cluster.url, pages, [(streams, 2), (long_one, 1)])
        record(folder, "burst", cluster.url, pages, [(burst, 32)])


if __name__ == "__main__":
    main()
