"""Kinds of values that the bench's flags take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def list_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Names that are known, with commas between."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return list(dict.fromkeys(names))

    return parse


def add_list(
    parser: argparse.ArgumentParser, flag: str, known: Sequence[str], default: list[str], note: str = ""
) -> None:
    """Adds a flag that takes a list of names."""
    text = f"of {','.join(known)}{note} (default: {','.join(default)})"
    parser.add_argument(flag, type=list_of(known), default=default, metavar="LIST", help=text)


def count(text: str) -> int:
    """A whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small; give 1 or more")
    return number
