"""Sharding: all ranks of both sides in numpy, every byte compared."""
