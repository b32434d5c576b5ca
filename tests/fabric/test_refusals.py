"""What the engine refuses, and that it is as good as before afterwards."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import REGION, Pair, World
from node import Invitation, copies

from sglang_pd_fabric.fabric.errors import FabricError

PAGE = np.zeros(1, np.uint32)
TABLE = copies(bytes=64)


def invitation(pair: Pair) -> Invitation:
    answer: Invitation = pair.receiver.ask("invite")
    return answer


def still_works(pair: Pair) -> None:
    assert np.array_equal(pair.deliver(TABLE, [0], [0]), pair.expected(TABLE, [0], [0]))


@pytest.mark.parametrize(
    ("columns", "pages", "words"),
    [
        ({"src_offset": REGION - 63}, PAGE, "source page 0 of 64 bytes ends outside"),
        ({"dst_offset": REGION - 63}, PAGE, "destination page 0 of 64 bytes ends outside"),
        ({"src_stride": 64}, PAGE + np.uint32(REGION // 64), "outside its region"),
        ({"src_offset": 2**64 - 1}, PAGE, "outside its region"),
        ({"dst_stride": 2**63}, PAGE + np.uint32(2), "outside the peer's region"),
        ({"bytes": 0}, PAGE, "zero bytes"),
        ({"src_region": 7}, PAGE, "region 7"),
        ({"dst_region": 9}, PAGE, "region 9"),
    ],
)
def test_a_plan_outside_its_regions_is_refused_before_anything_is_posted(
    pair: Pair, columns: dict[str, int], pages: np.ndarray, words: str
) -> None:
    posted = pair.sender.ask("stats").writes_posted
    with pytest.raises(FabricError, match=words):
        pair.sender.ask("send", pair.peer, 1, copies(**{"bytes": 64, **columns}), pages, pages)
    assert pair.sender.ask("stats").writes_posted == posted
    still_works(pair)


ABSURD = [-(2**63), -1, 2**13, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64]


def test_absurd_numbers_are_refused_and_harm_nothing(pair: Pair) -> None:
    """Whichever layer says so: cffi, Python or the core."""
    for number in ABSURD:
        for question, arguments in (
            ("units", (number,)),
            ("generation", (number,)),
            ("advance", (number,)),
            ("remove_nic", (number,)),
            ("unregister_index", (number,)),
            ("progress", (number << 40, 0)),
            ("progress", (0, number << 4)),
            ("send", (pair.peer, number, TABLE, PAGE, PAGE)),
            ("send", (pair.peer, 1, TABLE, PAGE, PAGE, number)),
            ("send", (pair.peer, 1, TABLE, PAGE, PAGE, 1, number << 40)),
        ):
            with pytest.raises((FabricError, AssertionError), match=r"OverflowError|slot|NIC|region|pass"):
                pair.sender.ask(question, *arguments)
    still_works(pair)


@pytest.mark.parametrize("pages", [np.array([-1]), np.array([2**32]), np.array([0.5]), np.array(["0"])])
def test_pages_that_are_no_page_ids_are_refused(pair: Pair, pages: np.ndarray) -> None:
    for src, dst in ((pages, PAGE), (PAGE, pages)):
        with pytest.raises(FabricError, match="page ids are whole numbers"):
            pair.sender.ask("send", pair.peer, 1, TABLE, src, dst)


def test_lists_that_do_not_fit_each_other_are_refused(pair: Pair) -> None:
    with pytest.raises(FabricError, match="1 source pages for 2 destination pages"):
        pair.sender.ask("send", pair.peer, 1, TABLE, PAGE, np.zeros(2, np.uint32))
    with pytest.raises(FabricError, match="columns of COPY"):
        pair.sender.ask("send", pair.peer, 1, np.zeros(1, np.uint64), PAGE, PAGE)


def test_a_released_transfer_takes_no_more_plans(pair: Pair) -> None:
    transfer = pair.sender.ask("send", pair.peer, pair.slot(), TABLE, PAGE, PAGE)
    last = pair.sender.ask("finish", transfer)
    for _ in range(2):
        pair.sender.ask("release", transfer)
    with pytest.raises(FabricError, match="released"):
        pair.sender.ask("submit", transfer, TABLE, PAGE, PAGE)
    pair.sender.ask("cancel", transfer)
    assert pair.sender.ask("status", transfer) == last


def test_a_peer_with_zero_regions_can_be_known_but_not_written(pair: Pair) -> None:
    peer = pair.sender.ask("add_peer", dataclasses.replace(invitation(pair), regions=[]))
    with pytest.raises(FabricError, match="a peer that offered 0"):
        pair.sender.ask("send", peer, 1, TABLE, PAGE, PAGE)
    pair.sender.ask("remove_peer", peer)
    with pytest.raises(FabricError, match="peer was removed"):
        pair.sender.ask("send", peer, 1, TABLE, PAGE, PAGE)
    still_works(pair)


@pytest.mark.parametrize(
    ("addresses", "keys", "words"),
    [
        ([], (), "0 NICs"),
        ([b"\xff" * 200], (1,), "address|0"),
        ([b"\x01" * 257], (1,), "257 bytes"),
        ([b"x"] * 9, (1,) * 9, "9 NICs"),
        (None, (1, 2), "does not fit its 1 NICs"),
        (None, (), "does not fit its 1 NICs"),
        (None, (-1,), "does not fit"),
        (None, (1 << 64,), "does not fit"),
    ],
)
def test_a_peer_that_makes_no_sense_is_refused(
    pair: Pair, addresses: list[bytes] | None, keys: tuple[int, ...], words: str
) -> None:
    good = invitation(pair)
    region = dataclasses.replace(good.regions[0], keys=keys)
    wrong = Invitation(good.addresses if addresses is None else addresses, [region])
    if addresses and addresses[0] == b"\xff" * 200 and pair.sender.spec.provider == "shm":
        pair.sender.ask("add_peer", wrong)  # a name that nobody has is no error yet
    else:
        with pytest.raises(FabricError, match=words):
            pair.sender.ask("add_peer", wrong)
    still_works(pair)


def test_a_wrong_key_costs_its_own_transfer(world: World) -> None:
    with world.impatient() as sender, world.node() as receiver:
        pair = Pair.join(sender, receiver)
        good = invitation(pair)
        region = dataclasses.replace(good.regions[0], keys=(good.regions[0].keys[0] ^ 1,))
        peer = sender.ask("add_peer", Invitation(good.addresses, [region]))
        wrong = sender.ask("send", peer, 5, TABLE, PAGE, PAGE)
        sender.ask("end", wrong)
        sender.ask("remove_peer", peer)
        sender.ask("finish", wrong)
        assert receiver.ask("units", 5) == 0
        assert not receiver.ask("read", 0, 64).any()


def test_closing_an_engine_races_with_threads_that_use_it(closing_world: World) -> None:
    if closing_world.provider != "tcp":
        pytest.skip("tcp only")
    script = Path(__file__).with_name("close_race.py")
    command = [sys.executable, "-X", "faulthandler", str(script), closing_world.library]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
