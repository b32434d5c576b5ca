"""From the model to the engine's progress word: which layers of which forward pass have been computed.

A forward pass gets its number on the scheduler's thread, before it is launched, and the number travels with
the batch: with the overlap scheduler the next pass is planned while this one runs, so there is no such thing
as a present forward pass. What runs without a number (warm-up, graph capture, dummy and idle batches, a
draft model) stores nothing and so cannot move a plan.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from sglang_pd_fabric.fabric.progress import ProgressWord

logger = logging.getLogger(__name__)

# What models call the module that follows attention within a layer.
_OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj", "wo")


@dataclass(frozen=True)
class Forward:
    """One forward pass that plans wait for: its number, and the word that will show it."""

    number: int
    word: ProgressWord

    @property
    def next(self) -> "Forward":
        """A pass with the next number. That none of its layers is done says that all of this pass are."""
        return Forward(self.number + 1, self.word)


class Signals(Protocol):
    """What follows the layers of the served model, on one kind of device."""

    def following(self, forward: Forward) -> AbstractContextManager[None]:
        """Within it, layers that are launched are layers of this forward pass."""

    def ended(self, forward: Forward, scheduler: Any) -> None:
        """Everything that the pass writes has been launched, also where layers were skipped: no plan that
        waits for the pass shall wait any longer once it has been computed."""


class LayerSignals:
    """Follows a model whose forward pass runs to its end on the calling thread (CPU).

    A hook on the module behind each layer's attention stores the progress word: by then the layer's keys and
    values are in the pool. The hooks are silent unless a numbered forward pass runs.

    Args:
        model: the loaded model.
    """

    def __init__(self, model: Any) -> None:
        self._forward: Forward | None = None
        for layers, module in enumerate(layer_outputs(model), 1):
            module.register_forward_hook(self._hook(layers))

    @contextmanager
    def following(self, forward: Forward) -> Iterator[None]:
        self._forward = forward
        try:
            yield
        finally:
            self._forward = None

    def ended(self, forward: Forward, scheduler: Any) -> None:  # noqa: ARG002 (the protocol's signature)
        forward.word.store(forward.next.number, 0)

    def _hook(self, layers: int) -> Callable[..., None]:
        def layer_done(*_module_inputs_and_output: Any) -> None:
            if self._forward is not None:
                self._forward.word.store(self._forward.number, layers)

        return layer_done


def layer_outputs(model: Any) -> list[Any]:
    """Of each attention layer in turn the module that runs when the layer's keys and values have been stored.

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
    return [found[layer] for layer in sorted(found)]


def follow(runner: Any) -> Signals | None:
    """Installs what follows the layers of a model runner's model; None where that is not possible.

    Two batches at a time (two-batch overlap) finish each layer twice, so a layer's word would come early.
    """
    from sglang.srt.runtime_context import get_disagg, get_exec

    if get_exec().overlap.enable_two_batch_overlap or get_disagg().enable_pdmux:
        logger.warning("Pages are sent chunk by chunk: with two batches at a time a layer is done twice")
        return None
    if runner.device == "cpu":
        return LayerSignals(runner.model)
    if runner.device == "cuda":
        from sglang_pd_fabric.integration.cuda_progress import CudaLayerSignals

        return CudaLayerSignals(runner.model)
    return None


def progress_word(device: str) -> int:
    """Address of the memory that this process's model stores its progress into; 0: the engine's own."""
    if device != "cuda":
        return 0
    from sglang_pd_fabric.integration.cuda_progress import mapped_word

    return mapped_word().address
