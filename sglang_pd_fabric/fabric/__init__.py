"""Moves bytes: NICs, memory regions, one-sided paged writes with an immediate, and the receiver's counters.

Knows no page layout and no SGLang. ``engine.Engine`` is the way in; ``library`` finds libfabric,
``profiles`` says what differs between providers, ``immediate`` fixes the 32 bits on the wire.
"""
