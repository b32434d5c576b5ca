"""Settings: wrong ones are refused by name, with the value and what is possible."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sglang_pd_fabric.settings import SettingError, Settings, load_settings, read_secret, variable

ROOT = Path(__file__).parents[2]


def test_without_any_variable_the_defaults_hold() -> None:
    assert load_settings({}) == Settings()


def test_every_field_is_read_from_its_variable() -> None:
    environ = {
        "SGLANG_PD_FABRIC_PROVIDER": "shm",
        "SGLANG_PD_FABRIC_LIBFABRIC": "/opt/lib/libfabric.so.1",
        "SGLANG_PD_FABRIC_HOST": "127.0.0.1",
        "SGLANG_PD_FABRIC_NICS": "mlx5_0,mlx5_1",
        "SGLANG_PD_FABRIC_CPUS": "4-7",
        "SGLANG_PD_FABRIC_SAME_HOST": "map",
        "SGLANG_PD_FABRIC_SLOTS": "16",
        "SGLANG_PD_FABRIC_SPIN_US": "0",
        "SGLANG_PD_FABRIC_STALL_S": "3",
        "SGLANG_PD_FABRIC_HOLD_S": "0",
        "SGLANG_PD_FABRIC_LIMIT_S": "60",
        "SGLANG_PD_FABRIC_LAYERWISE": "0",
        "SGLANG_PD_FABRIC_FIRST_TOKEN": "prefill",
        "SGLANG_PD_FABRIC_SECRET_FILE": "/run/secret",
        "SGLANG_PD_FABRIC_INTEGRITY": "1",
        "SGLANG_PD_FABRIC_ALLOW_MISMATCH": "model,weights",
        "SGLANG_PD_FABRIC_STAMPS": "/tmp/stamps",
        "SGLANG_PD_FABRIC_TRACE": "/tmp/trace",
    }
    assert set(environ) == {variable(entry.name) for entry in fields(Settings)}
    assert load_settings(environ) == Settings(
        provider="shm",
        libfabric="/opt/lib/libfabric.so.1",
        host="127.0.0.1",
        nics="mlx5_0,mlx5_1",
        cpus="4-7",
        same_host="map",
        slots=16,
        spin_us=0,
        stall_s=3,
        hold_s=0,
        limit_s=60,
        layerwise=0,
        first_token="prefill",
        secret_file="/run/secret",
        integrity=1,
        allow_mismatch="model,weights",
        stamps="/tmp/stamps",
        trace="/tmp/trace",
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PROVIDER", "efs", "auto, efa, efa-direct, verbs, tcp, shm"),
        ("SLOTS", "many", "not a whole number"),
        ("SLOTS", "8193", "1 to 8192"),
        ("STALL_S", "0", "1 to 3600"),
        ("LAYERWISE", "2", "0 to 1"),
        ("INTEGRITY", "2", "0 to 1"),
        ("ALLOW_MISMATCH", "page_size", "model, weights, draft_model, compute_dtype, sglang can"),
        ("ALLOW_MISMATCH", "model, weights", "' weights' cannot be overridden"),
        ("PROVIDRE", "tcp", "SGLANG_PD_FABRIC_PROVIDER"),
    ],
)
def test_a_wrong_value_or_name_is_refused_with_what_is_possible(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingError) as caught:
        load_settings({f"SGLANG_PD_FABRIC_{name}": value})
    assert f"SGLANG_PD_FABRIC_{name}" in str(caught.value)
    assert says in str(caught.value)


def secret_in(path: Path, content: bytes, mode: int = 0o600) -> Settings:
    path.write_bytes(content)
    path.chmod(mode)
    return Settings(secret_file=str(path))


def test_a_secret_is_read_without_the_newline_at_its_end(tmp_path: Path) -> None:
    assert read_secret(Settings()) is None
    assert read_secret(secret_in(tmp_path / "secret", b"0123456789abcdef\n")) == b"0123456789abcdef"


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"", 0o600, "0 bytes; at least 16"),
        (b"short\n", 0o600, "5 bytes; at least 16"),
        (b"0123456789abcdef", 0o644, "every user"),
        (b"0123456789abcdef", 0o602, "every user"),
    ],
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, content: bytes, mode: int, says: str) -> None:
    with pytest.raises(SettingError, match=f"SGLANG_PD_FABRIC_SECRET_FILE=.*{says}") as caught:
        read_secret(secret_in(tmp_path / "secret", content, mode))
    assert not content.strip() or content.decode().strip() not in str(caught.value)


def test_a_secret_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="No such file"):
        read_secret(Settings(secret_file=str(tmp_path / "missing")))
    with pytest.raises(SettingError, match="directory"):
        read_secret(Settings(secret_file=str(tmp_path)))


def test_no_other_module_reads_the_environment() -> None:
    package = ROOT / "sglang_pd_fabric"
    # Handing the whole environment on to a child process (``**os.environ``) reads nothing from it.
    reading = re.compile(r"(?<!\*\*)os\.environ(?!`)|getenv\(")
    readers = [
        str(path.relative_to(package)) for path in package.rglob("*.py") if reading.search(path.read_text())
    ]
    assert readers == ["settings.py"]
