"""Waits for events of a GPU's streams on threads of our own, so that the scheduler does not."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def event_behind(stream: Any) -> Any:
    """A CUDA event behind all that is in the stream now. Who waits for it sleeps."""
    import torch

    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    return event


class EventThread:
    """Does one thing after another, each when its event has come. The thread starts with the first.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: queue.SimpleQueue[tuple[Any, Callable[[], object]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def then(self, event: Any, act: Callable[[], object]) -> None:
        """Returns at once. What raises is logged, and what comes behind it is done all the same."""
        self._waiting.put((event, act))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            event, act = self._waiting.get()
            try:
                _wait(event)
                act()
            except Exception:
                logger.exception("What waited for an event of the GPU has failed")


def _wait(event: Any) -> None:
    """Waits on the event's own GPU: a new thread is on the first one, and would make a context there."""
    device = getattr(event, "device", None)
    if device is not None:
        import torch

        torch.cuda.set_device(device)
    event.synchronize()


class LaunchedPasses:
    """Does things when the forward passes that a rank has launched by now have ended.

    Under the overlap scheduler SGLang gives the pages of a request that is over to the next one while a pass
    runs that was launched with the old one and still writes its next token
    (``event_loop_overlap_disagg_decode`` in sglang/srt/disaggregation/decode.py). SGLang's own kernels are
    ordered behind that pass by their stream. A NIC is behind none: what it wrote would be written over.

    Args:
        asynchronous: whether a pass goes on when the scheduler does. Not on a CPU.
        behind: makes an event behind what is in a stream.
    """

    def __init__(self, *, asynchronous: bool, behind: Callable[[Any], Any] = event_behind) -> None:
        self._asynchronous = asynchronous
        self._behind = behind
        self._stream: Any = None
        self._thread = EventThread("pd_fabric_passes")

    def of(self, owner: Any) -> None:
        """Names an owner of the scheduler that launches: SGLang has none yet when our manager is made."""
        if self._asynchronous:
            self._stream = owner.scheduler.forward_stream

    def then(self, act: Callable[[], object]) -> None:
        """Calls ``act`` behind all passes that were launched before: at once, where none can be running."""
        if self._stream is None:
            act()
        else:
            self._thread.then(self._behind(self._stream), act)
