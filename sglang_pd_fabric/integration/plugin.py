"""SGLang's way in: the entry point ``sglang.srt.plugins`` calls ``register`` in every process, once.

SGLang logs what a plugin or a hook raises and goes on without it. So nothing here is the last word:
``FabricKVManager`` checks at its start that everything is really in place, and refuses to serve otherwise.
"""

import logging
from enum import Enum
from pathlib import Path
from typing import Any

BACKEND = "fabric"

logger = logging.getLogger(__name__)


def register() -> None:
    """Adds the transfer backend ``fabric`` to SGLang and installs the hooks it needs."""
    from sglang.srt.arg_groups.choices import DISAGG_TRANSFER_BACKEND_CHOICES
    from sglang.srt.disaggregation.utils import TransferBackend
    from sglang.srt.server_args import add_disagg_transfer_backend_choices

    from sglang_pd_fabric.integration import hooks, stamps
    from sglang_pd_fabric.settings import load_settings

    if BACKEND not in DISAGG_TRANSFER_BACKEND_CHOICES:
        add_disagg_transfer_backend_choices([BACKEND])
    extend_enum(TransferBackend, "FABRIC", BACKEND)
    directory = load_settings().stamps
    if directory:  # before our own hooks, which then count as what comes after the forward pass
        stamps.install(Path(directory))
    hooks.install()


def serves_us() -> bool:
    """Whether this server uses our backend. Only then may a hook change anything."""
    from sglang.srt.runtime_context import get_disagg

    disagg = get_disagg()
    return disagg.disaggregation_mode != "null" and bool(disagg.disaggregation_transfer_backend == BACKEND)


def extend_enum(cls: Any, name: str, value: str) -> None:
    """Adds a member to an Enum class in place, so that every module that imported the class sees it.

    SGLang looks backends up with ``TransferBackend(value)``, and offers no registration for the Enum.
    """
    if value in cls._value2member_map_:
        return
    member: Enum = object.__new__(cls)
    member._name_ = name
    member._value_ = value
    member.__objclass__ = cls  # type: ignore[attr-defined]
    member._sort_order_ = len(cls._member_names_)  # type: ignore[attr-defined]
    cls._member_names_.append(name)
    cls._member_map_[name] = member
    cls._value2member_map_[value] = member
    type.__setattr__(cls, name, member)
