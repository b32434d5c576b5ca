"""Tests that need a GPU; each is skipped with its reason where there is none."""
