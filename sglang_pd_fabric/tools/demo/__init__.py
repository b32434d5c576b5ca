"""Whole clusters on one machine: start them, ask them, compare their answers with an ordinary server's.

``launch/local`` and the end-to-end tests are both thin users of this package:
``processes`` runs one child, ``servers`` knows the command lines, ``cluster`` starts and stops a set of them,
``prompts`` and ``client`` ask, ``compare`` judges, ``metrics`` and ``report`` tell what it took.
"""
