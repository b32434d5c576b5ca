"""What our counters and gauges say after what happened to them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from sglang_pd_fabric.fabric.records import EngineStats
from sglang_pd_fabric.integration import metrics
from sglang_pd_fabric.messenger.rooms import Sent
from sglang_pd_fabric.messenger.seal import Dropped
from sglang_pd_fabric.messenger.states import Held

NOTHING = EngineStats(*[0] * 15, nic_bytes=(0,) * 8)


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"{metrics.PREFIX}{name}", labels) or 0.0


def test_a_finished_transfer_is_added() -> None:
    names = ("requests", "bytes", "pages", "writes")
    before = [value(f"sent_{name}_total") for name in names]
    exposed, busy = value("exposed_seconds_total"), value("busy_seconds_total")
    sent = Sent(100, 80, 0.5, 12, 3, 0.25, (("10.0.0.1", 60), ("10.0.0.2", 30), ("10.0.0.1", 10)))
    metrics.count(sent)
    after = [value(f"sent_{name}_total") for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 100, 12, 3]
    grown = (value("exposed_seconds_total") - exposed, value("busy_seconds_total") - busy)
    assert grown == pytest.approx((0.25, 0.5))  # others of this process may have counted before
    assert value("peer_bytes_total", peer="10.0.0.1") == 70
    assert value("peer_bytes_total", peer="10.0.0.2") == 30


def test_an_engine_adds_what_it_did_since_the_last_look() -> None:
    first = NOTHING._replace(immediates_late=2, paths_lost=1, nic_bytes=(10, 20, 0, 0, 0, 0, 0, 0))
    second = first._replace(immediates_late=5, nic_bytes=(10, 50, 0, 0, 0, 0, 0, 0))
    late, lost = value("immediates_late_total"), value("paths_lost_total")
    metrics.count_engine(NOTHING, first, ["rdma0", "rdma1"])
    metrics.count_engine(first, second, ["rdma0", "rdma1"])
    assert (value("immediates_late_total") - late, value("paths_lost_total") - lost) == (5, 1)
    assert (value("nic_bytes_total", nic="rdma0"), value("nic_bytes_total", nic="rdma1")) == (10, 50)


def test_a_failure_is_added_to_its_kind() -> None:
    before = value("failed_requests_total", reason="peer lost")
    metrics.count_failure("peer lost")
    assert value("failed_requests_total", reason="peer lost") == before + 1


def test_dropped_messages_are_added_to_their_kinds_since_the_last_look() -> None:
    def values() -> list[float]:
        return [value("dropped_messages_total", kind=kind) for kind in ("forged", "malformed")]

    forged, malformed = values()
    metrics.count_dropped({}, {"forged": 2})
    metrics.count_dropped({"forged": 2}, {"forged": 5, "malformed": 1})
    metrics.count_dropped({"forged": 5, "malformed": 1}, {"forged": 5, "malformed": 1})
    assert values() == [forged + 5, malformed + 1]


def test_each_kind_of_dropped_message_is_there_before_the_first(tmp_path: Path) -> None:
    """As scheduler processes leave their samples for the process that answers /metrics."""
    code = "import sglang_pd_fabric.integration.metrics"
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    page = CollectorRegistry()
    MultiProcessCollector(page, str(tmp_path))
    name = f"{metrics.PREFIX}dropped_messages_total"
    assert [page.get_sample_value(name, {"kind": kind}) for kind in get_args(Dropped)] == [0.0] * 5


def test_gauges_show_what_is_held_now() -> None:
    metrics.show(Held(3, 2, slots_free=5, slots_used=1), remembered=4, nics_lost=1)
    metrics.show(Held(1, 2, slots_free=6), remembered=0, nics_lost=0)
    assert [value(name) for name in ("rooms", "peers", "slots_free", "slots_used")] == [1, 2, 6, 0]
    assert (value("remembered"), value("nics_lost")) == (0, 0)


def test_the_provider_can_be_seen() -> None:
    metrics.show_nics("tcp", 2)
    assert value("nics", provider="tcp") == 2


def test_each_name_is_described_once_with_a_sentence() -> None:
    names = [each.name for each in metrics.DESCRIPTORS]
    assert len(set(names)) == len(names)
    assert all(each.text and each.unit for each in metrics.DESCRIPTORS)
