"""The core and the profiles over a scripted libfabric, which answers as recorded machines do.

The C programs run in three flavours. The profiles run through the real ``Engine``, each in a process of its
own, since a process has one libfabric.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from programs import make, output_of, side_by_side

from sglang_pd_fabric.fabric.profiles import PROFILES

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "scripted"
PROGRAMS = ("opening", "limits", "memory", "faults", "dead", "order", "removed", "warm", "confirm")
SANITIZERS = {
    "plain": {},
    "address": {"ASAN_OPTIONS": "detect_leaks=1"},
    "thread": {"TSAN_OPTIONS": "halt_on_error=1"},
}
CHILD = """
import ctypes, json, logging, sys
import numpy as np
from sglang_pd_fabric.fabric import availability, profiles
from sglang_pd_fabric.fabric.engine import Engine
from sglang_pd_fabric.fabric.library import open_library
from sglang_pd_fabric.fabric.transfer import COPY
from sglang_pd_fabric.integration.engine import choose_profile
from sglang_pd_fabric.settings import Settings

path, machine = sys.argv[1:]
script = ctypes.CDLL(path)
script.scripted_machine(machine.encode())
library = open_library(path)
assert library.path == path

class Seen(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "posts", "again", "empty_posts", "confirmations", "deliveries", "on_wire", "most_in_queue",
        "most_segments", "most_bytes", "most_unread", "queue_entries", "flags", "open_objects", "violations",
    )] + [("violation", ctypes.c_char * 256)]

def look():
    seen = Seen()
    script.scripted_look(ctypes.byref(seen))
    assert not seen.violations, seen.violation
    return seen
"""


def build(flavour: str) -> Path:
    make(HERE, flavour)
    return BUILD / flavour


@pytest.fixture(scope="module", params=SANITIZERS)
def results(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[str]]]:
    """Of the programs of a flavour. Without its sanitizer's runtime the linker says so here, and we fail."""
    folder = build(request.param)
    commands = {name: ([str(folder / f"test_{name}")], SANITIZERS[request.param]) for name in PROGRAMS}
    with side_by_side(commands) as running:
        yield running


@pytest.mark.parametrize("program", PROGRAMS)
def test_core_over_a_scripted_provider(results: Mapping[str, Future[str]], program: str) -> None:
    results[program].result()


def test_every_program_is_run() -> None:
    assert sorted(path.stem for path in HERE.glob("test_*.c")) == sorted(f"test_{name}" for name in PROGRAMS)


@pytest.fixture(scope="module")
def provider() -> Path:
    return build("plain") / "libscripted.so"


def on(provider: Path, machine: str, code: str) -> Any:
    """Runs code on a recorded machine; what it printed last, as JSON."""
    return json.loads(
        output_of([sys.executable, "-c", CHILD + code, str(provider), machine]).splitlines()[-1]
    )


MOVE = """
name, nics = {name!r}, {nics}
profile = profiles.PROFILES[name]
domains = [profile.domain(device) for device in {devices!r}][:nics]
sources = ["127.0.0.1" if profile.binds_host else None] * nics
ends = [Engine(library, profile, sources=sources, domains=domains, spin=0) for _ in range(2)]
memory = [np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)]
regions = [end.register(m.ctypes.data, m.nbytes, m) for end, m in zip(ends, memory)]
addresses = [[nic.address for nic in end.nics] for end in ends]
if profile.inserts_both_ways:
    ends[1].add_peer(addresses[0], [])
peer = ends[0].add_peer(addresses[1], [regions[1]])
table = np.zeros(1, COPY)
table["src_stride"] = table["dst_stride"] = table["bytes"] = 4096
pages = np.random.default_rng(2).permutation(256).astype(np.uint32)
transfer = ends[0].open_transfer(peer, 3, 1)
transfer.submit(table, pages, pages[::-1].copy())
while ends[1].slot_units(3) < 256 or not transfer.status().quiet:
    assert not transfer.status().error
want = np.zeros_like(memory[1]).reshape(256, 4096)
want[pages[::-1]] = memory[0].reshape(256, 4096)[pages]
assert (memory[1].reshape(256, 4096) == want).all()
seen, nic = look(), ends[0].nics[0]
transfer.release()
for end in ends:
    end.close()
assert look().open_objects == 0
print(json.dumps(dict(
    provider=nic.provider, fabric=nic.fabric, domain=nic.domain, segments=nic.segments, window=nic.window,
    options=nic.options, emulated=nic.emulated, flags=seen.flags, empty=seen.empty_posts,
    entries=seen.queue_entries, segments_seen=seen.most_segments,
)))
"""
DEVICES = {
    "efa": ["rdmap79s0", "rdmap80s0"],
    "efa-direct": ["rdmap79s0", "rdmap80s0"],
    "verbs": ["mlx5_0", "mlx5_1"],
    "tcp": ["eth0", "lo"],
    "shm": ["shm", "shm"],
}
CASES = [
    ("p5", "efa"),
    ("p5", "efa-direct"),
    ("p5", "tcp"),
    ("p5-libfabric-2.5", "efa"),
    ("hgx-h100-cx7", "verbs"),
    ("laptop", "tcp"),
    ("laptop", "shm"),
    ("debian-12", "tcp"),
]


@pytest.mark.parametrize("nics", [1, 2])
@pytest.mark.parametrize(("machine", "name"), CASES)
def test_every_profile_moves_pages_and_breaks_no_rule(
    provider: Path, machine: str, name: str, nics: int
) -> None:
    seen = on(provider, machine, MOVE.format(name=name, nics=nics, devices=DEVICES[name]))
    assert seen["provider"].split(";")[0] == {"efa-direct": "efa"}.get(name, name)
    warmed = 0 if name == "shm" else nics
    if PROFILES[name].confirm and nics > 1:
        assert seen["empty"] > warmed, "the delivery of what the first NIC wrote last is asked for"
    else:
        assert seen["empty"] == warmed, "connections are warmed where there are any"
    if name.startswith("efa"):
        assert (seen["fabric"], seen["domain"]) == (name, "rdmap79s0-rdm")
        assert not seen["emulated"]
        assert seen["entries"] == 12288
        assert "FI_OPT_SHARED_MEMORY_PERMITTED" in seen["options"]
        assert "FI_OPT_CUDA_API_PERMITTED" not in seen["options"], "there is no GPU memory"
    if name in ("efa", "efa-direct", "verbs"):
        assert seen["segments"] == seen["segments_seen"] == 1
    else:
        assert seen["segments"] == seen["segments_seen"] == 4


def test_small_writes_are_hinted_to_efa_from_libfabric_2_6_on(provider: Path) -> None:
    for machine, hinted in (("p5", True), ("p5-libfabric-2.5", False)):
        seen = on(provider, machine, MOVE.format(name="efa", nics=1, devices=DEVICES["efa"]))
        assert bool(seen["flags"] >> 60 & 1) == hinted


CHOOSE = """
logs = []
logging.getLogger("sglang_pd_fabric.integration.engine").addHandler(
    type("Keep", (logging.Handler,), {{"emit": lambda self, record: logs.append(record.getMessage())}})()
)
try:
    print(json.dumps([choose_profile(Settings(provider={wish!r}), library).name, logs]))
except availability.ProviderMissingError as error:
    print(json.dumps([None, [str(error)]]))
"""


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("p5", "efa"),
        ("p5-libfabric-2.5", "efa"),
        ("p5-libfabric-1.17", "tcp"),
        ("hgx-h100-cx7", "verbs"),
        ("laptop", "tcp"),
        ("debian-12", "tcp"),
    ],
)
def test_auto_takes_the_best_and_is_loud_about_tcp(provider: Path, machine: str, name: str) -> None:
    chosen, logs = on(provider, machine, CHOOSE.format(wish="auto"))
    assert chosen == name
    assert len(logs) == (name == "tcp")
    for line in logs:
        assert "NO RDMA NIC IS USED" in line
        assert "SGLANG_PD_FABRIC_PROVIDER=tcp" in line


@pytest.mark.parametrize("wish", ["efa", "efa-direct", "verbs"])
def test_a_provider_that_was_asked_for_and_is_not_there_ends_the_start(provider: Path, wish: str) -> None:
    chosen, (message,) = on(provider, "laptop", CHOOSE.format(wish=wish))
    assert chosen is None
    assert f"provider {wish} cannot be used" in message
    assert "it offers shm, tcp" in message
    for part in ("/sys/class/infiniband", "/dev/infiniband"):
        if not Path(part).exists():
            assert part in message


def test_an_old_libfabric_that_would_emulate_writes_is_refused_for_efa(provider: Path) -> None:
    chosen, (message,) = on(provider, "p5-libfabric-1.17", CHOOSE.format(wish="efa"))
    assert chosen is None
    assert "efa needs 1.18 or newer" in message


@pytest.mark.parametrize("wish", ["efa", "efa-direct", "verbs", "tcp", "shm"])
def test_a_provider_that_is_there_is_taken_as_asked(provider: Path, wish: str) -> None:
    machine = "hgx-h100-cx7" if wish == "verbs" else "p5"
    assert on(provider, machine, CHOOSE.format(wish=wish)) == [wish, []]


def test_with_nothing_to_use_auto_says_so(provider: Path) -> None:
    chosen, (message,) = on(provider, "bare", CHOOSE.format(wish="auto"))
    assert chosen is None
    assert "tcp: fi_getinfo offers no tcp; it offers nothing" in message
