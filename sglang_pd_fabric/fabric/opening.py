"""Writes a profile and the choice of NICs into the struct that opens an engine of the core."""

from collections.abc import Sequence
from typing import Any

from sglang_pd_fabric.fabric._core import ffi, lib
from sglang_pd_fabric.fabric.errors import FabricError
from sglang_pd_fabric.fabric.profiles import SERVED_MR_MODE, Profile, Version


def nanoseconds(seconds: float) -> int:
    """As the core counts; what is too long for it is for ever."""
    return min(round(seconds * 1e9), 2**64 - 1) if seconds != float("inf") else 2**64 - 1


class Opening:
    """``config`` is the core's struct; it points into this object, which has to outlive its use.

    Args:
        version: of the libfabric that will be used: it decides on options and flags.
        sources: for each NIC the local address to bind, or None for the provider's choice.
        domains: for each NIC libfabric's name of it, or None for the first there is; may be shorter.
        gpu: memory of a GPU will be registered.
        cpus: where the I/O thread runs; empty: wherever this process may.

    Raises:
        FabricError: too few or too many NICs.
    """

    def __init__(
        self,
        profile: Profile,
        version: Version,
        *,
        sources: Sequence[str | None],
        domains: Sequence[str | None],
        gpu: bool,
        cpus: Sequence[int] = (),
    ) -> None:
        if not 1 <= len(sources) <= lib.SPF_MAX_NICS:
            raise FabricError(f"an engine has 1 to {lib.SPF_MAX_NICS} NICs, not {len(sources)}")
        self._texts: list[Any] = []
        self.config = ffi.new("spf_engine_config *")
        self.config.nic_count = len(sources)
        self._cpus = ffi.new("uint32_t[]", list(cpus))
        self.config.cpus, self.config.cpu_count = self._cpus, len(cpus)
        for index, source in enumerate(sources):
            self.config.nics[index].source = self._text(source)
        for index, domain in enumerate(domains[: len(sources)]):
            self.config.nics[index].domain = self._text(domain)
        self._profile(self.config.profile, profile)
        options = profile.options_for(version, gpu=gpu)
        self.option_names = tuple(option.name for option in options)
        raw = self.config.profile
        raw.caps = profile.caps_for(gpu=gpu)
        raw.write_flags = profile.flags_for(version)
        raw.option_count = len(options)
        for row, option in zip(raw.options, options, strict=False):
            row.number, row.bytes, row.value = option.number, option.nbytes, option.value

    def _profile(self, raw: Any, profile: Profile) -> None:
        raw.provider = self._text(profile.provider)
        raw.fabric = self._text(profile.fabric or None)
        raw.api_version = profile.api[0] << 16 | profile.api[1] if profile.api else 0
        raw.mr_mode = SERVED_MR_MODE
        raw.write_bytes = profile.write_bytes
        raw.segments = profile.segments
        raw.window = profile.window
        raw.peer_window = profile.peer_window
        raw.queue_entries = profile.queue_entries
        raw.wait_fd = profile.wait_fd
        raw.event_queue = profile.event_queue
        raw.warm_up = profile.warm_up
        raw.renew = profile.renew
        raw.cut = profile.cut
        raw.outlives = profile.outlives
        raw.confirm = profile.confirm
        raw.emulation = profile.emulation_option

    def _text(self, text: str | None) -> Any:
        if text is None:
            return ffi.NULL
        self._texts.append(ffi.new("char[]", text.encode()))
        return self._texts[-1]
