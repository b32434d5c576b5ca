"""What is known of a peer that is gone, and for how long its writes may still come.

Who is told that a peer is lost (``link.Loss``) needs to know one thing: can it still write? A process that
has ended cannot, but the kernel or the NIC may hold bytes of it that have yet to arrive. A process that only
keeps silent may be frozen: it can wake up and go on.
"""

import time
from collections.abc import Callable

# Seconds for which bytes of a process that has ended may still arrive, by our profile (docs/how-it-works.md).
LINGER_S = {"tcp": 5.0}
LINGER_OTHERS_S = 1.0

# Seconds for which pages are kept back when a writer neither confirms nor is known to have ended.
HOLD_S = 120.0


class AwakeClock:
    """Seconds in which this process was awake: they do not pass while it is frozen.

    When we were frozen ourselves, bytes of the dead wait for our I/O thread as they did before.

    Args:
        now: seconds of a monotonic clock.
    """

    MOST = 0.5  # seconds that one ``tick`` may add; it is called several times a second

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last = now()
        self.seconds = 0.0

    def tick(self) -> None:
        now = self._now()
        self.seconds += min(now - self._last, self.MOST)
        self._last = now
