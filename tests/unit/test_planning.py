"""Which pages of a request a forward pass completes."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_pd_fabric.integration.planning import final_pages


def test_a_chunk_ends_with_its_last_full_page_and_the_prompt_with_its_last_token() -> None:
    assert final_pages(128, 300, 0, 64) == 2
    assert final_pages(130, 300, 0, 64) == 2
    assert final_pages(300, 300, 0, 64) == 5
    assert final_pages(320, 320, 0, 64) == 5
    assert final_pages(63, 300, 0, 64) == 0


def test_what_decode_has_is_not_counted() -> None:
    assert final_pages(128, 300, 64, 64) == 1
    assert final_pages(300, 300, 256, 64) == 1
    assert final_pages(256, 256, 256, 64) == 0
    assert final_pages(64, 300, 128, 64) == 0


@given(st.data())
def test_chunks_share_the_pages_of_a_prompt_and_none_is_taken_before_it_is_full(data: st.DataObject) -> None:
    page_size = data.draw(st.sampled_from([1, 16, 64]))
    prompt = data.draw(st.integers(1, 700))
    prefix = data.draw(st.integers(0, prompt // page_size)) * page_size
    ends = sorted({*data.draw(st.lists(st.integers(1, prompt), max_size=6)), prompt})
    taken = [final_pages(end, prompt, prefix, page_size) for end in ends]
    assert taken == sorted(taken)
    assert taken[-1] == -(-(prompt - prefix) // page_size)
    for end, pages in zip(ends, taken, strict=True):
        last_token = min(prefix + pages * page_size, prompt)
        assert pages == 0 or last_token <= end
        assert end == prompt or end - max(prefix, last_token) < page_size
