"""From the model to the engine's progress word: which layers of which forward pass have been computed.

A forward pass gets its number on the scheduler's thread, before it is launched, and the number travels with
the batch: with the overlap scheduler the next pass is planned while this one runs, so there is no such thing
as a present forward pass. What runs without a number (warm-up, graph capture, dummy and idle batches, a
draft model) stores nothing and so cannot move a plan.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sglang_pd_fabric.fabric.progress import MAX_STEPS, ProgressWord

# What models call the module that follows attention within a layer.
_OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj", "wo")


@dataclass(frozen=True)
class Forward:
    """One forward pass that plans wait for."""

    number: int
    word: ProgressWord

    def layers_done(self, layers: int) -> None:
        self.word.store(self.number, layers)

    def ended(self) -> None:
        """Everything that the pass writes has been written, also where layers were skipped."""
        self.word.store(self.number, MAX_STEPS)


class LayerSignals:
    """Follows a model whose forward pass runs to its end on the calling thread (CPU).

    A hook on the module behind each layer's attention stores the progress word: by then the layer's keys and
    values are in the pool. The hooks are silent unless a numbered forward pass runs.

    Args:
        model: the loaded model, before any graph is captured.
    """

    def __init__(self, model: Any) -> None:
        self._forward: Forward | None = None
        self.layers = sorted(_outputs(model))
        for layer, module in _outputs(model).items():
            module.register_forward_hook(self._hook(layer + 1))

    @contextmanager
    def following(self, forward: Forward) -> Iterator[None]:
        """Within it, layers are layers of this forward pass."""
        self._forward = forward
        try:
            yield
        finally:
            self._forward = None

    def _hook(self, layers: int) -> Any:
        def layer_done(*_module_inputs_and_output: Any) -> None:
            if self._forward is not None:
                self._forward.layers_done(layers)

        return layer_done


def _outputs(model: Any) -> dict[int, Any]:
    """By layer, the module that runs when the layer's keys and values have been stored.

    Where no known name is found it is the attention module as a whole. A layer with two attention objects
    for one cache (DeepSeek's two forms) has one such module.
    """
    from sglang.srt.layers.radix_attention import RadixAttention
    from torch import nn

    found: dict[int, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, RadixAttention):
            owner = model.get_submodule(name.rpartition(".")[0])
            children = (getattr(owner, output, None) for output in _OUTPUTS)
            found[module.layer_id] = next((c for c in children if isinstance(c, nn.Module)), owner)
    return found
