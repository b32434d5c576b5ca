"""What an HTTP server says of a request that it does not serve, and what of that the other side is told."""

import inspect

import pytest

from sglang_pd_fabric.integration.http import refusals


def test_a_client_that_hung_up_is_no_refusal() -> None:
    """The other side is told by the abort, and the room may be used again."""
    gone = ValueError(f"{refusals.HUNG_UP} from the client side (type 1). Abort request rid='x'")
    assert refusals._refusal(gone) == ""
    assert refusals._refusal(ValueError("the prompt is too long")) == "the prompt is too long"
    assert refusals._refusal(RuntimeError("out of memory")) == ""


def test_sglang_says_so_in_these_words() -> None:
    pytest.importorskip("sglang", reason="SGLang is not installed: pip install 'sglang-pd-fabric[sglang]'")
    from sglang.srt.managers import tokenizer_manager

    assert f'"{refusals.HUNG_UP} from the client side' in inspect.getsource(tokenizer_manager)
