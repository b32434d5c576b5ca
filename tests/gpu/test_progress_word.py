"""The progress word as a GPU stores it: eagerly, in a captured graph, and never without a number."""

import ctypes
from typing import Any

import pytest

from sglang_pd_fabric.integration.progress import Forward

pytestmark = pytest.mark.gpu


class Attention:
    """Makes a model of so many layers, in the shape that the signals look for."""

    @staticmethod
    def stack(layers: int) -> Any:
        from sglang.srt.layers.radix_attention import RadixAttention
        from torch import nn

        class Layer(nn.Module):  # type: ignore[misc]
            def __init__(self, layer: int) -> None:
                super().__init__()
                self.attn = RadixAttention(2, 4, 1.0, 2, layer)
                self.o_proj = nn.Linear(8, 8, device="cuda")

            def forward(self, value: Any) -> Any:
                return self.o_proj(value)

        return nn.Sequential(*(Layer(layer) for layer in range(layers)))


@pytest.fixture
def parts() -> tuple[Any, Any, Any]:
    """A model, its signals, and how to read the word once the device is through."""
    import torch

    from sglang_pd_fabric.integration.cuda_progress import CudaLayerSignals, mapped_word

    model = Attention.stack(3)
    signals = CudaLayerSignals(model)
    ctypes.memset(mapped_word().address, 0, 8)

    def word() -> tuple[int, int]:
        torch.cuda.synchronize()
        value = ctypes.c_uint64.from_address(mapped_word().address).value
        return value >> 16, value & 0xFFFF

    return model, signals, word


def forward(number: int) -> Forward:
    return Forward(number, None)  # type: ignore[arg-type]  (the GPU stores into the mapped word itself)


def test_layers_of_a_numbered_pass_move_the_word_and_others_do_not(parts: tuple[Any, Any, Any]) -> None:
    import torch

    model, signals, word = parts
    value = torch.zeros(4, 8, device="cuda")
    model(value)
    assert word() == (0, 0)
    with signals.following(forward(7)):
        model(value)
    assert word() == (7, 3)
    model(value)
    assert word() == (7, 3)


def test_a_replayed_graph_moves_the_word_and_its_capture_does_not(parts: tuple[Any, Any, Any]) -> None:
    import torch

    model, signals, word = parts
    value = torch.zeros(4, 8, device="cuda")
    model(value)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(value)
    assert word() == (0, 0)
    for number in (1, 2):
        with signals.following(forward(number)):
            graph.replay()
        assert word() == (number, 3)
    graph.replay()
    assert word() == (2, 3)


def test_the_end_of_a_pass_is_stored_behind_it_on_its_stream(parts: tuple[Any, Any, Any]) -> None:
    from types import SimpleNamespace

    import torch

    _model, signals, word = parts
    stream = torch.cuda.Stream()
    signals.ended(forward(4), SimpleNamespace(enable_overlap=True, forward_stream=stream))
    assert word() == (5, 0)


def test_page_ids_come_in_order_without_a_wait_of_the_caller() -> None:
    import queue

    import torch

    from sglang_pd_fabric.integration.page_ids import PageReader

    reader, answers = PageReader(), queue.Queue()  # type: ignore[var-annotated]
    for start in range(5):
        reader.read(torch.arange(start, start + 3, device="cuda"), answers.put)
    assert [answers.get(timeout=60).tolist() for _ in range(5)] == [[s, s + 1, s + 2] for s in range(5)]
