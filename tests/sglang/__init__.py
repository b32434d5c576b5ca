"""Tests against real SGLang servers."""
