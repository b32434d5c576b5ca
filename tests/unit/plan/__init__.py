"""Tests of `sglang-pd-fabric plan`."""
