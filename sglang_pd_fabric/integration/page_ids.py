"""Page ids of a chunk: SGLang keeps them where the model runs, the messenger needs them on the host."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_pd_fabric.integration.events import EventThread, event_behind

PageIds = npt.NDArray[np.integer[Any]]


class PageReader:
    """Passes page ids on as soon as they can be read, in the order in which they were asked for.

    On the CPU that is at once. On a GPU the scheduler must not wait for them: under the overlap scheduler its
    stream may stand behind the forward pass that runs. So they are copied into pinned memory, and a thread
    waits for the copy. A plan that is made a little late is still right: layers that are done by then go
    at once.
    """

    def __init__(self) -> None:
        self._thread = EventThread("pd_fabric_page_ids")

    def read(self, pages: Any, then: Callable[[PageIds], object]) -> None:
        """Calls ``then`` with the ids.

        Args:
            pages: tensor of page ids, shape ``[pages]``.
        """
        if pages.device.type == "cpu":
            then(pages.numpy())
            return
        import torch

        copy = torch.empty(pages.shape, dtype=pages.dtype, device="cpu", pin_memory=True)
        copy.copy_(pages, non_blocking=True)
        copied = event_behind(torch.cuda.current_stream(pages.device))
        self._thread.then(copied, lambda: then(copy.numpy()))
