"""What every contender moves: one request's KV cache on one rank, at random pages, with known content.

Pure functions over numpy arrays, and imported by the peers' interpreter too: nothing of ours is needed here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Buffer = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.uint64]
PageIds = npt.NDArray[np.uint32]

_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no two words of a buffer are equal


class Shape(NamedTuple):
    """``layers`` buffers of ``slots`` pages each, of which a request has ``pages``."""

    name: str
    layers: int
    pages: int
    page_bytes: int

    @property
    def slots(self) -> int:
        """Pages in each layer's buffer: twice what a request needs."""
        return 2 * self.pages

    @property
    def writes(self) -> int:
        """Pages of a request over all layers."""
        return self.layers * self.pages

    @property
    def request_bytes(self) -> int:
        return self.writes * self.page_bytes

    @property
    def buffer_bytes(self) -> int:
        return self.layers * self.slots * self.page_bytes


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("mla", 61, 64, 73_728),  # DeepSeek-R1: 4,096 tokens, page 64, bf16
        Shape("gqa", 124, 64, 16_384),  # Qwen3-Coder, one rank of TP8: 4,096 tokens, page 64, bf16
        Shape("small", 124, 256, 1_024),
    )
}


class Draw(NamedTuple):
    """The pages of one repetition, the same ones in every layer, as SGLang's allocators give them."""

    src: PageIds
    dst: PageIds


def draw(shape: Shape, seed: int, repetition: int) -> Draw:
    """Pages at random, without order; both processes draw the same ones."""
    rng = np.random.default_rng([seed, repetition])
    src, dst = (rng.permutation(shape.slots)[: shape.pages].astype(np.uint32) for _ in range(2))
    return Draw(src, dst)


def offsets(shape: Shape, pages: PageIds) -> Offsets:
    """Where the pages of all layers begin in a buffer, layer by layer."""
    starts = np.arange(shape.layers, dtype=np.uint64)[:, None] * np.uint64(shape.slots)
    return ((starts + pages.astype(np.uint64)) * np.uint64(shape.page_bytes)).ravel()


def touched(nbytes: int) -> Buffer:
    """A zeroed buffer whose every page exists before anything is timed."""
    buffer = np.empty(nbytes, np.uint8)
    buffer[:] = 0
    return buffer


def filled(shape: Shape) -> Buffer:
    """A buffer in which every 8-byte word differs from every other."""
    buffer = np.empty(shape.buffer_bytes, np.uint8)
    words = _words(shape, buffer)
    for layer in range(shape.layers):
        words[layer] = _content(shape, layer, np.arange(shape.slots))
    return buffer


def wrong_pages(shape: Shape, buffer: Buffer, pages: Draw) -> int:
    """How many pages of the repetition do not hold what ``filled`` has at their source."""
    words = _words(shape, buffer)
    return sum(
        int((words[layer, pages.dst] != _content(shape, layer, pages.src)).any(axis=1).sum())
        for layer in range(shape.layers)
    )


def _words(shape: Shape, buffer: Buffer) -> npt.NDArray[np.uint64]:
    return buffer.view(np.uint64).reshape(shape.layers, shape.slots, shape.page_bytes // 8)


def _content(shape: Shape, layer: int, pages: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint64]:
    per_page = shape.page_bytes // 8
    starts = (np.uint64(layer * shape.slots) + pages.astype(np.uint64)) * np.uint64(per_page)
    return (starts[:, None] + np.arange(per_page, dtype=np.uint64)) * _MIX
