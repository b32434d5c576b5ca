"""Every setting of ours, read once from the environment, validated, and documented in one table.

SGLang's own flags (``--disaggregation-...``) cover the rest. No other module reads ``os.environ``.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PREFIX = "SGLANG_PD_FABRIC_"
MIN_SECRET_BYTES = 16


class SettingError(ValueError):
    """A setting has a value that cannot be used; the message names it, the value and what is possible."""


def _setting(default: Any, help_text: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **limits})


@dataclass(frozen=True)
class Settings:
    """One field for each variable ``SGLANG_PD_FABRIC_<FIELD IN CAPITALS>``."""

    provider: str = _setting(
        "auto", "libfabric provider", choices=("auto", "efa", "efa-direct", "verbs", "tcp", "shm")
    )
    libfabric: str = _setting("", "path of libfabric.so.1; empty: search (see fabric/library.py)")
    host: str = _setting("", "address that endpoints bind to; empty: SGLang's local address")
    nics: str = _setting("", "NICs to use; wins over --disaggregation-ib-device, which has the same syntax")
    cpus: str = _setting("auto", "where the I/O thread runs: auto (near its NICs), none (not pinned), or 4-7")
    same_host: str = _setting(
        "auto",
        "peers on one host: map the peer's memory where that is possible (auto), always, or never",
        choices=("auto", "map", "provider"),
    )
    slots: int = _setting(8192, "completion slots: requests in flight per decode rank", low=1, high=8192)
    spin_us: int = _setting(50, "microseconds the I/O thread spins before it sleeps", low=0, high=10_000_000)
    stall_s: int = _setting(
        10, "seconds after which a transfer whose peer takes nothing fails", low=1, high=3600
    )
    hold_s: int = _setting(
        120,
        "seconds for which decode holds pages that a silent prefill may still write to; "
        "0: until it answers or has ended",
        low=0,
        high=86_400,
    )
    limit_s: int = _setting(
        0, "seconds after which a transfer fails, however well it goes; 0: no limit", low=0, high=86_400
    )
    layerwise: int = _setting(
        1, "1: send each layer while the next is computed; 0: after the chunk", low=0, high=1
    )
    first_token: str = _setting(
        "decode",
        "who computes the first token: decode, where a request allows it, or prefill (stock SGLang)",
        choices=("decode", "prefill"),
    )
    secret_file: str = _setting(
        "", "file with a secret that all servers share; empty: control messages are not authenticated"
    )
    integrity: int = _setting(
        0, "1: decode compares checksums of what was written (both sides); 0: none are made", low=0, high=1
    )
    allow_mismatch: str = _setting(
        "",
        "fields of the compatibility record that may differ, if both sides say so: model,weights",
        parts=("model", "weights", "draft_model", "compute_dtype", "sglang"),
    )
    stamps: str = _setting("", "directory to write requests' time stamps to, with any backend; empty: none")
    trace: str = _setting("", "folder for a trace of each rank, as JSON lines; empty: none")


def variable(name: str) -> str:
    """The environment variable of a field."""
    return PREFIX + name.upper()


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Reads and checks all settings.

    Raises:
        SettingError: a value is out of range, or a variable with our prefix is none of ours.
    """
    source = os.environ if environ is None else environ
    known = {variable(entry.name): entry for entry in fields(Settings)}
    unknown = sorted(name for name in source if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise SettingError(f"unknown setting {unknown[0]}; there are {', '.join(sorted(known))}")
    values: dict[str, Any] = {
        entry.name: _parse(name, source[name], entry.default, entry.metadata)
        for name, entry in known.items()
        if name in source
    }
    return Settings(**values)


def read_secret(settings: Settings) -> bytes | None:
    """The secret in the file that the settings name, without white space around it; None if they name none.

    Raises:
        SettingError: the file cannot be read, holds fewer than 16 bytes, or is open to every user.
    """
    if not settings.secret_file:
        return None
    name, path = variable("secret_file"), Path(settings.secret_file)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(1 << 16).strip()
    except OSError as error:
        raise SettingError(f"{name}={path}: {error.strerror}") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise SettingError(f"{name}={path}: every user of this machine can read or write it; chmod 600 helps")
    if len(secret) < MIN_SECRET_BYTES:
        raise SettingError(f"{name}={path}: {len(secret)} bytes; at least {MIN_SECRET_BYTES} make a secret")
    return secret


def _parse(name: str, text: str, default: object, metadata: Mapping[str, Any]) -> object:
    if isinstance(default, int):
        try:
            value = int(text)
        except ValueError:
            raise SettingError(f"{name}={text!r} is not a whole number") from None
        if not metadata["low"] <= value <= metadata["high"]:
            raise SettingError(f"{name}={value}: {metadata['low']} to {metadata['high']} are possible")
        return value
    choices = metadata.get("choices")
    if choices and text not in choices:
        raise SettingError(f"{name}={text!r}: {', '.join(choices)} are possible")
    parts = metadata.get("parts", ())
    wrong = [part for part in text.split(",") if part not in parts] if parts and text else []
    if wrong:
        raise SettingError(f"{name}={text!r}: {wrong[0]!r} cannot be overridden; {', '.join(parts)} can")
    return text
