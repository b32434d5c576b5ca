"""An exhaustive search through a small model of the abort protocol."""
