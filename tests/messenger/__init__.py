"""Tests of the messenger."""
