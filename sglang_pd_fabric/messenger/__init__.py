"""Moves KV: layers, pages, layouts, ranks, chunks and completion slots.

Knows no SGLang and no libfabric name. ``prefill.PrefillMessenger`` writes, ``decode.DecodeMessenger`` counts;
``messages`` is all they say to each other, ``layout`` is what they say of
themselves, ``compatibility`` whether they fit, and ``sharding`` decides what goes where.
"""
