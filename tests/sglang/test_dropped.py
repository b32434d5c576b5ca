"""Control messages that are dropped stand on the page of metrics. Importing SGLang costs about 10 seconds."""

from typing import Any

import pytest
import zmq

pytest.importorskip("sglang", reason="SGLang is not installed: pip install 'sglang-pd-fabric[sglang]'")

from prometheus_client import REGISTRY

from sglang_pd_fabric.integration import metrics
from sglang_pd_fabric.integration.conn.showing import Showing
from sglang_pd_fabric.messenger import messages
from sglang_pd_fabric.messenger.links import Links
from sglang_pd_fabric.messenger.messages import Endpoint
from sglang_pd_fabric.messenger.seal import Seal

from ..messenger.far_end import HOST, Mailbox, note
from .ranks import ranks

pytestmark = pytest.mark.sglang

SECRET, OTHER = b"0123456789abcdef", b"another secret!!"


def dropped(kind: str) -> float:
    return REGISTRY.get_sample_value(f"{metrics.PREFIX}dropped_messages_total", {"kind": kind}) or 0.0


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_what_a_ranks_links_drop_is_counted_by_its_manager(side: str) -> None:
    kinds, box = ("malformed", "unsealed", "forged", "repeated"), Mailbox()
    before = [dropped(kind) for kind in kinds]
    with ranks() as both, zmq.Context() as context, context.socket(zmq.PUSH) as attacker:
        made: Any = getattr(both, side)
        made.links = links = Links(HOST, SECRET)
        made._showing = Showing(made.engine, links)

        def tick() -> None:
            (made._tick_on_prefill if side == "prefill" else made._tick_on_decode)()
            box.tick()

        links.start(box.receive, box.lose, tick)
        try:
            attacker.connect(f"tcp://{links.endpoint}")
            plain, here = messages.encode(note(1)), Endpoint(HOST, 1)
            sealed = Seal(SECRET, here).put_on(plain, links.endpoint)
            strange = Seal(OTHER, here).put_on(plain, links.endpoint)
            for frames in ([b"PDS1", b"x"], plain, strange, sealed, sealed):
                attacker.send_multipart(frames)
            box.wait(lambda _: [dropped(kind) for kind in kinds] == [count + 1 for count in before])
            ticks = box.ticks
            box.wait(lambda box: box.ticks > ticks + 1)
            assert [dropped(kind) for kind in kinds] == [count + 1 for count in before], "counted once"
            assert box.numbers() == [1]
        finally:
            links.close()
