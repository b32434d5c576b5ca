"""Recipes for whole models: one description each, from which every file in ``launch/`` is written."""
