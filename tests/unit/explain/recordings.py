"""Pages of real servers, as ``record.py`` took them."""

import gzip
from pathlib import Path

from sglang_pd_fabric.tools.explain.page import Page, Window

FOLDER = Path(__file__).parent / "recordings"
SECONDS = 12.0  # between the two readings, about


def text(situation: str, reading: int, role: str) -> str:
    """One page as it came."""
    return gzip.decompress((FOLDER / f"{situation}-{reading}-{role}.txt.gz").read_bytes()).decode()


def window(situation: str, role: str) -> Window:
    """Both readings of a server."""
    before, after = (Page.parse(text(situation, reading, role)) for reading in (1, 2))
    return Window([(before, after)], SECONDS)
