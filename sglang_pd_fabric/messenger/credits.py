"""Credits: how many writes each prefill rank may have in flight to this decode rank.

Each immediate takes an entry of the completion queue of the NIC that it arrives at, and on EFA and ConnectX
one entry too many is the end of the queue. So decode divides what its queue holds among those that write to
it, and says in Hello how much of that each may use. What is granted together never exceeds the queue.

This bounds what can arrive at one blow, not what piles up while our I/O thread does not run at all; it reads
the queue without Python and is pinned for that reason.
"""

from sglang_pd_fabric.fabric.profiles import Profile


class Credits:
    """Divides the completion queue of a profile."""

    def __init__(self, profile: Profile) -> None:
        self._most = profile.peer_window
        self._left = profile.queue_entries - profile.window  # the rest is for our own writes

    @property
    def left(self) -> int:
        """What can still be granted."""
        return self._left

    def grant(self) -> int:
        """Credits for one more writer: a full window as long as there is plenty, then an eighth of the rest.

        0: there is nothing left, and the writer must be refused.
        """
        granted = min(self._most, max(1, self._left // 8), self._left)
        self._left -= granted
        return granted

    def give_back(self, granted: int) -> None:
        """The writer is gone."""
        self._left += granted
