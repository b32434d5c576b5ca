"""Time stamps of requests from real servers: each is computed, taken and transferred, in that order."""

from collections import Counter
from pathlib import Path

import pytest

from sglang_pd_fabric.integration.stamps import read
from sglang_pd_fabric.settings import variable
from sglang_pd_fabric.tools.bench.handover.times import join
from sglang_pd_fabric.tools.demo.client import ask_all
from sglang_pd_fabric.tools.demo.cluster import ClusterOptions
from sglang_pd_fabric.tools.demo.pool import Pool
from sglang_pd_fabric.tools.demo.prompts import Question, text

pytestmark = pytest.mark.sglang

CHUNK = 256
LENGTHS = (1, 200, 2 * CHUNK + 10)
CHUNKS = (1, 1, 3)


def test_each_forward_pass_and_each_transfer_is_stamped(pool: Pool, backend: str, tmp_path: Path) -> None:
    env = {variable("stamps"): str(tmp_path)}
    cluster = pool.cluster(ClusterOptions(backend=backend, chunked_prefill_size=CHUNK, env=env))
    questions = [Question(f"q{length}", text(length, length), answer_tokens=2) for length in LENGTHS]
    answers = ask_all(cluster.url, questions, at_once=1)
    assert [answer.error for answer in answers] == [""] * len(LENGTHS)
    stamps = read(tmp_path)
    # Room 0 is SGLang's own: its warm-up and its health checks.
    rooms = [stamp.room for stamp in stamps if stamp.event == "transferred" and stamp.room]
    assert len(rooms) == len(set(rooms)) == len(LENGTHS)
    for event in ("computed", "taken"):
        count = Counter(stamp.room for stamp in stamps if stamp.event == event)
        assert tuple(count[room] for room in rooms) == CHUNKS
    assert all(0 <= times.taken < times.handover for times in join(stamps, rooms).values())
