"""What an engine says of its NICs and of what it has done."""

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class NicInfo:
    provider: str
    fabric: str
    domain: str
    address: bytes
    segments: int
    mr_mode: int
    window: int
    options: tuple[str, ...]  # those of the profile that the provider took
    emulated: bool  # writes are made of messages and copies: the device cannot write, or may not


class EngineStats(NamedTuple):
    """Counters since the engine was opened; see spf_engine_stats in core/api.h."""

    writes_posted: int
    writes_completed: int
    writes_failed: int
    bytes_completed: int
    units_completed: int
    post_again: int
    units_counted: int
    immediates_late: int
    immediates_unknown: int
    writes_orphaned: int
    paths_lost: int
    sleeps: int
    units_early: int
    trace_lost: int
    endpoints_renewed: int
    nic_bytes: tuple[int, ...]

    @classmethod
    def of(cls, raw: Any) -> "EngineStats":
        """From the core's struct."""
        return cls._make([*(getattr(raw, name) for name in cls._fields[:-1]), tuple(raw.nic_bytes)])
