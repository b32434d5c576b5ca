"""The 32-bit immediate that every write carries: completion slot, its generation, units completed.

The widths are the core's (``core/api.h``), since it is the core that packs and counts; this module gives
Python the same numbers. EFA and verbs carry 32 bits, so all providers are held to 32.
"""

from sglang_pd_fabric.fabric._core import lib

SLOT_BITS: int = lib.SPF_SLOT_BITS
GENERATION_BITS: int = lib.SPF_GENERATION_BITS
UNIT_BITS: int = lib.SPF_UNIT_BITS

MAX_SLOTS = 1 << SLOT_BITS
MAX_GENERATION = (1 << GENERATION_BITS) - 1
MAX_UNITS = (1 << UNIT_BITS) - 1
