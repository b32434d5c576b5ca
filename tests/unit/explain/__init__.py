"""Tests of ``sglang-pd-fabric explain``, with recorded pages of real servers beside them."""
