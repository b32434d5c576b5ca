"""What a server may not be started with is refused at once, with the flag and the way out."""

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_pd_fabric.integration.describe import UnsupportedConfigurationError, refuse_unsupported

pytest.importorskip("sglang", reason="SGLang is not installed: pip install 'sglang-pd-fabric[sglang]'")

POOL: dict[str, Any] = {"state_types": []}
FLAGS: dict[str, Any] = {"enable_memory_saver": False, "tokenizer_worker_num": 1, "smg_grpc_mode": False}
RANKS: dict[str, Any] = {"pp_size": 1, "attn_cp_size": 1}


def refuse(pool: Any = POOL, flags: Any = FLAGS, ranks: Any = RANKS) -> None:
    refuse_unsupported(*(SimpleNamespace(**each) for each in (pool, flags, ranks)))


def test_what_we_serve_is_not_refused() -> None:
    refuse()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"pool": {"state_types": [SimpleNamespace(value="mamba")]}},
            r"keeps state .*\(mamba\).*mooncake or nixl",
        ),
        ({"flags": {**FLAGS, "enable_memory_saver": True}}, "--enable-memory-saver.*leave the flag out"),
        ({"flags": {**FLAGS, "tokenizer_worker_num": 2}}, "--tokenizer-worker-num 2.*leave it out"),
        ({"flags": {**FLAGS, "smg_grpc_mode": True}}, "--smg-grpc-mode.*leave it out"),
        ({"ranks": {**RANKS, "pp_size": 2}}, "--pp-size 2.*use 1"),
        ({"ranks": {**RANKS, "attn_cp_size": 2}}, "context parallel size 2.*needs 1"),
    ],
)
def test_the_flag_and_the_way_out_are_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedConfigurationError, match=named):
        refuse(**changed)


def test_the_servers_in_rust_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_RUST_SERVER", "1")
    with pytest.raises(UnsupportedConfigurationError, match="SGLANG_RUST_SERVER=1"):
        refuse()
