"""Servers that freeze, die, start again, or take less than others: their requests end with the reason.

A weak prefill and a weak decode beside the shared cluster. Some 4 minutes on two quiet cores, half of them
for the two starts of the weak ones.
"""

import asyncio
import math
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from tcp_relay import Fate

from sglang_pd_fabric.tools.demo.metrics import sample_sums
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.processes import Server
from sglang_pd_fabric.tools.demo.prompts import text
from sglang_pd_fabric.tools.demo.servers import HOST, free_ports

from .asking import Body, Outcome, assert_failed, bootstrap, post, post_all, post_together
from .relay import Relay
from .test_aborts import occupied
from .weak import (
    BOOTSTRAP_SECONDS,
    DECODE_CONTEXT,
    GENERATE,
    OPTIONS,
    PREFILL_CONTEXT,
    Weak,
    frozen,
    wait_for,
)

pytestmark = pytest.mark.sglang
nightly = pytest.mark.nightly

LONG = 1500


def generate(prompt: str, tokens: int = 8, **more: Any) -> Body:
    return {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": tokens}, **more}


@pytest.fixture(scope="module")
def weak(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weak]:
    pool.ordinary("gqa")
    strong = pool.cluster(OPTIONS)
    with Weak(strong, tmp_path_factory.mktemp("weak")) as servers:
        yield servers


@pytest.fixture(scope="module")
def right(pool: Pool) -> Any:
    """What the ordinary server answers."""
    url = pool.ordinary("gqa").url + GENERATE

    def answer(body: Body) -> Any:
        return post(url, {name: body[name] for name in ("text", "sampling_params")}).body["output_ids"]

    return answer


@pytest.fixture(autouse=True)
def all_well(weak: Weak) -> Iterator[None]:
    """After each test: whoever lives is healthy, holds nothing, and no scheduler has raised."""
    yield
    strong = weak.strong
    for server in (*strong.prefills, *strong.decodes, weak.prefill, weak.decode):
        if server.alive():
            wait_for(server.ready)
            wait_for(lambda one=server: not occupied(one))
            assert "Scheduler hit an exception" not in server.log.read_text()


# -- nobody there (C15, C20) -------------------------------------------------------------------------


def test_without_a_prefill_the_answer_is_an_error_with_the_reason(weak: Weak) -> None:
    """Nobody listens there, somebody who is silent, and somebody else. All at once: each takes 15 s."""
    decode = weak.strong.decodes[0]
    with socket.create_server((HOST, 0)) as silent:
        ports = (free_ports(1)[0], silent.getsockname()[1], int(decode.url.rsplit(":", 1)[1]))
        asked = []
        for port in ports:
            for stream in (False, True):
                room = bootstrap(port, random.randrange(1, 1 << 63))
                asked.append((decode.url + GENERATE, generate("hello", stream=stream) | room))
                chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
                room = bootstrap(port, random.randrange(1, 1 << 63))
                asked.append((decode.url + "/v1/chat/completions", chat | room))
        for (_url, body), outcome in zip(asked, post_all(asked), strict=True):
            assert_failed(outcome, f"no prefill at bootstrap address {HOST}:{body['bootstrap_port']}")
            assert outcome.status == 500


# -- too long for one side (C13) ---------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("prefill", "decode", "limit"),
    [("weak", "strong", PREFILL_CONTEXT), ("strong", "weak", DECODE_CONTEXT)],
    ids=["prefill takes less", "decode takes less"],
)
def test_what_is_too_long_for_one_side_is_the_clients_error_on_both(
    weak: Weak, right: Any, prefill: str, decode: str, limit: int, stream: bool
) -> None:
    seen = set()
    for length in (limit - 9, limit - 1, limit, limit + 1):
        body = generate(text(length, length), 4, stream=stream)
        replies = weak.ask(body, prefill=prefill, decode=decode)
        seen.add(replies[1].status)
        if replies[1].status == 200:
            assert (replies[1].last or {})["output_ids"] == right(body)[: len(replies[1].last["output_ids"])]
        else:
            for reply in replies:
                assert reply.status == 400, reply
                assert_failed(reply, "context length", "maximum allowed length", "longer than")
    assert seen == {200, 400}


# -- a queue on decode (C25) -------------------------------------------------------------------------


def test_requests_that_wait_for_a_seat_on_decode_do_not_time_out_on_prefill(weak: Weak, right: Any) -> None:
    def body(index: int) -> Body:
        return generate(text(100 + index, 900 + index), 110)

    for index in (0, 1):  # the second time both know each other
        began = time.monotonic()
        assert not weak.ask(body(index), prefill="weak", decode="weak")[1].error
    one = time.monotonic() - began
    count = max(32, math.ceil(4 * BOOTSTRAP_SECONDS / one))  # on two seats, so that the last wait for long
    bodies = [body(index) for index in range(count)]
    asked = [request for body in bodies for request in weak.through(body, prefill="weak", decode="weak")]
    began = time.monotonic()
    replies = post_all(asked, seconds=240)
    assert [reply.status for reply in replies] == [200] * len(replies)
    # Otherwise the last have not waited long enough to show anything.
    assert time.monotonic() - began > BOOTSTRAP_SECONDS
    for index in (0, count // 2, count - 1):
        assert replies[2 * index + 1].body["output_ids"] == right(bodies[index])


# -- pages of an aborted request (C01) ---------------------------------------------------------------


@pytest.mark.parametrize("rounds", [6, pytest.param(50, marks=nightly)])
def test_pages_of_an_aborted_request_are_not_written_to_for_the_next(
    weak: Weak, right: Any, rounds: int
) -> None:
    """Decode's pool holds one of two. Prefill stands still while one is aborted and the next asked for."""
    source = random.Random(1)
    prefill = weak.strong.prefills[0]

    async def one(number: int) -> Outcome:
        first = generate(text(LONG, 10_000 + number), 8, rid=f"first-{number}-{random.random()}")
        second = generate(text(LONG - 30, 20_000 + number), 8)
        asked = asyncio.create_task(
            post_together(weak.through(first, prefill="strong", decode="weak"), seconds=120)
        )
        await asyncio.sleep(source.uniform(0.0, 0.5))
        with frozen(prefill):
            async with httpx.AsyncClient() as client:
                await client.post(f"{weak.decode.url}/abort_request", json={"rid": first["rid"]})
            following = asyncio.create_task(
                post_together(weak.through(second, prefill="strong", decode="weak"), seconds=120)
            )
            await asyncio.sleep(source.uniform(0.0, 0.3))
        _prefill, answer = await following
        await asked
        return answer

    for number in range(rounds):
        answer = asyncio.run(one(number))
        assert not answer.error, answer
        assert answer.body["output_ids"] == right(generate(text(LONG - 30, 20_000 + number), 8))


# -- a frozen prefill (C03) --------------------------------------------------------------------------


@pytest.mark.parametrize("requests", [200, pytest.param(2000, marks=nightly)])
def test_a_frozen_prefill_costs_its_own_requests_and_no_others(weak: Weak, right: Any, requests: int) -> None:
    """Both decodes: one has met the prefill, the other may not have.

    The weak one need not be healthy meanwhile: its few pages may all be held for the frozen writer.
    """
    good = [generate(text(200 + index, 40 + index), 16) for index in range(10)]
    assert not weak.ask(good[0], prefill="weak", decode="strong")[1].error

    decode = weak.strong.decodes[0]

    async def everything() -> tuple[list[Outcome], list[Outcome]]:
        lost = asyncio.create_task(
            post_together(
                [
                    weak.through(generate(text(50, index), 4), prefill="weak", decode=which)[1]
                    for index in range(requests)
                    for which in (("strong",) if index % 20 else ("strong", "weak"))
                ],
                seconds=120,
            )
        )
        await asyncio.sleep(0.5)
        served = await post_together(
            [each for body in good for each in weak.through(body, prefill="strong", decode="strong")]
        )
        async with httpx.AsyncClient(timeout=60) as client:
            assert (await client.get(f"{decode.url}/health")).status_code == httpx.codes.OK
        return served, await lost

    with frozen(weak.prefill):
        served, lost = asyncio.run(everything())
        wait_for(decode.ready)
    for body, reply in zip(good, served[1::2], strict=True):
        assert not reply.error
        assert reply.body["output_ids"] == right(body)
    for reply in lost:
        assert_failed(reply)
        assert reply.status == 500
    wait_for(lambda: not weak.ask(good[1], prefill="weak", decode="strong")[1].error)
    assert weak.ask(good[2], prefill="weak", decode="strong")[1].body["output_ids"] == right(good[2])


# -- a piece of one buffer that is lost (C14) ---------------------------------------------------------


@nightly
def test_a_buffer_that_is_lost_is_an_error_in_time_and_never_an_answer(weak: Weak, right: Any) -> None:
    """Decode counts and counts: what ends the request is its patience, 60 s with this decode."""
    body = generate(text(300, 8), 8)
    kinds = (("kv", 0), ("kv", -1), ("aux", 0), ("aux", -1))
    with ExitStack() as stack:
        relays = [stack.enter_context(Relay(weak.strong.bootstrap_ports[0], writes=True)) for _ in kinds]
        for relay, kind in zip(relays, kinds, strict=True):
            assert weak.ask(body, prefill="strong", decode="weak", port=relay.port)[1].body[
                "output_ids"
            ] == right(body)
            relay.spoil(*kind, Fate.IS_LOST)
        asked = [
            weak.through(body, prefill="strong", decode="weak", port=relay.port)[each]
            for relay in relays
            for each in (0, 1)
        ]
        replies = post_all(asked, seconds=240)
        for relay, reply in zip(relays, replies[1::2], strict=True):
            assert relay.has_spoiled
            assert_failed(reply)
            assert reply.status == 500
        for relay in relays:
            assert weak.ask(body, prefill="strong", decode="weak", port=relay.port)[1].body[
                "output_ids"
            ] == right(body)


# -- deaths and second lives (C04, C05) --------------------------------------------------------------


def used_tokens(server: Server) -> float:
    """Of the KV pool: what is neither free nor only cached."""
    page = httpx.get(f"{server.url}/metrics", timeout=30, follow_redirects=True).text
    return sample_sums(page).get("sglang:num_used_tokens", 0.0)


def kill_in_mid_transfer(weak: Weak, victim: Server, **pair: str) -> list[Outcome]:
    """The victim dies while eight long requests are under way. What came of each, from prefill and decode."""

    async def run() -> list[Outcome]:
        asked = [
            each
            for index in range(8)
            for each in weak.through(generate(text(LONG, random.randrange(1 << 30)), 64), **pair)
        ]
        replies = [asyncio.create_task(post_together([each])) for each in asked]
        await asyncio.wait(
            replies[::2], return_when=asyncio.FIRST_COMPLETED
        )  # prefill has served one of them
        weak.kill(victim)
        return [(await each)[0] for each in replies]

    return asyncio.run(run())


def test_a_killed_prefill_ends_its_requests_with_the_reason_and_others_go_on(weak: Weak, right: Any) -> None:
    good = generate(text(300, 1), 16)
    assert not weak.ask(good, prefill="weak", decode="strong")[1].error
    replies = kill_in_mid_transfer(weak, weak.prefill, prefill="weak", decode="strong")
    for reply in replies[1::2]:
        assert reply.status == 200 or (reply.status == 500 and "prefill" in reply.error), reply
    assert any(reply.status == 500 for reply in replies[1::2])
    # Through the router, while it is dead: an error, whatever the router makes of it; no answer.
    for stream in (False, True):
        reply = post(weak.router.url + GENERATE, generate("hello", 4, stream=stream))
        assert reply.error
        assert not reply.ended
    assert weak.ask(good, prefill="strong", decode="strong")[1].body["output_ids"] == right(good)


def test_a_killed_decode_leaves_prefills_pool_as_it_was(weak: Weak) -> None:
    prefill = weak.strong.prefills[0]
    wait_for(lambda: not occupied(prefill))
    before = used_tokens(prefill)
    replies = kill_in_mid_transfer(weak, weak.decode, prefill="strong", decode="weak")
    assert any(reply.error for reply in replies[::2])
    wait_for(lambda: not occupied(prefill) and used_tokens(prefill) <= before)


def test_both_are_served_again_after_their_second_start(weak: Weak, right: Any) -> None:
    """On their old ports, while their peers were never started again."""
    weak.kill(*(server for server in (weak.prefill, weak.decode) if server.alive()))
    weak.revive()
    for index in range(10):
        body = generate(text(200 + 90 * index, 60 + index), 8)
        for pair in (("weak", "strong"), ("strong", "weak"), ("weak", "weak")):
            _prefill, reply = weak.ask(body, prefill=pair[0], decode=pair[1])
            assert not reply.error, (pair, index, reply)
            assert reply.body["output_ids"] == right(body)
        assert not post(weak.router.url + GENERATE, body).error


@nightly
def test_a_prefill_that_comes_back_with_other_pages_is_refused_and_served_when_they_fit(
    weak: Weak, right: Any
) -> None:
    body = generate(text(300, 5), 8)
    assert not weak.ask(body, prefill="weak", decode="strong")[1].error
    weak.kill(weak.prefill)
    weak.revive({"prefill": ("--page-size", "16")})
    for reply in weak.ask(body, prefill="weak", decode="strong"):
        assert reply.status == 500
        assert_failed(reply, "page_size: prefill has 16, decode has 64")
    weak.kill(weak.prefill)
    weak.revive()
    assert weak.ask(body, prefill="weak", decode="strong")[1].body["output_ids"] == right(body)


@nightly
def test_a_decode_that_is_started_twice_in_a_row_is_served(weak: Weak, right: Any) -> None:
    body = generate(text(300, 6), 8)
    for _ in range(2):
        kill_in_mid_transfer(weak, weak.decode, prefill="strong", decode="weak")
        weak.revive()
    for index in range(20):
        body = generate(text(100 + 60 * index, 80 + index), 8)
        assert weak.ask(body, prefill="strong", decode="weak")[1].body["output_ids"] == right(body)
