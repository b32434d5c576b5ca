"""Tiny seeded checkpoints whose answers depend on every page of the KV cache: the oracle of our tests."""
