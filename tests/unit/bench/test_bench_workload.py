"""The page lists and the content by which every contender is judged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.tools.bench.workload import (
    SHAPES,
    Draw,
    Shape,
    draw,
    filled,
    offsets,
    touched,
    wrong_pages,
)

shapes = st.builds(
    Shape,
    st.just("some"),
    layers=st.integers(1, 5),
    pages=st.integers(1, 9),
    page_bytes=st.integers(1, 8).map(lambda words: 8 * words),
)


def place(shape: Shape, source: np.ndarray, target: np.ndarray, pages: Draw) -> None:
    """What a contender has to do, in plain numpy."""
    rows = shape.layers, shape.slots, shape.page_bytes
    target.reshape(rows)[:, pages.dst] = source.reshape(rows)[:, pages.src]


@pytest.mark.parametrize(
    ("name", "nbytes"), [("mla", 287_834_112), ("gqa", 130_023_424), ("small", 32_505_856)]
)
def test_the_shapes_are_those_of_the_issue(name: str, nbytes: int) -> None:
    assert SHAPES[name].request_bytes == nbytes
    assert SHAPES[name].buffer_bytes == 2 * nbytes


@given(shapes, st.integers(0, 9))
def test_both_processes_draw_the_same_pages_and_none_twice(shape: Shape, repetition: int) -> None:
    here, there = draw(shape, 7, repetition), draw(shape, 7, repetition)
    for mine, theirs in zip(here, there, strict=True):
        assert mine.tolist() == theirs.tolist()
        assert len(set(mine.tolist())) == shape.pages
        assert mine.max() < shape.slots


def test_repetitions_draw_different_pages() -> None:
    assert draw(SHAPES["gqa"], 1, 1).src.tolist() != draw(SHAPES["gqa"], 1, 2).src.tolist()


@given(shapes)
def test_offsets_are_layer_by_layer_and_inside_the_buffer(shape: Shape) -> None:
    pages = draw(shape, 1, 1).src
    want = [
        (layer * shape.slots + int(page)) * shape.page_bytes
        for layer in range(shape.layers)
        for page in pages
    ]
    assert offsets(shape, pages).tolist() == want
    assert max(want) + shape.page_bytes <= shape.buffer_bytes


@given(shapes)
def test_no_two_words_of_a_source_are_equal(shape: Shape) -> None:
    words = filled(shape).view(np.uint64)
    assert len(np.unique(words)) == len(words)


@given(shapes)
def test_pages_in_their_places_are_right(shape: Shape) -> None:
    target, pages = touched(shape.buffer_bytes), draw(shape, 1, 1)
    place(shape, filled(shape), target, pages)
    assert wrong_pages(shape, target, pages) == 0


@given(shapes, st.data())
def test_one_wrong_byte_is_one_wrong_page(shape: Shape, data: st.DataObject) -> None:
    target, pages = touched(shape.buffer_bytes), draw(shape, 1, 1)
    place(shape, filled(shape), target, pages)
    start = data.draw(st.sampled_from(offsets(shape, pages.dst).tolist()))
    target[start + data.draw(st.integers(0, shape.page_bytes - 1))] ^= 1
    assert wrong_pages(shape, target, pages) == 1


def test_pages_that_never_came_are_wrong() -> None:
    shape = Shape("some", 2, 4, 64)
    assert wrong_pages(shape, touched(shape.buffer_bytes), draw(shape, 1, 1)) == shape.writes
