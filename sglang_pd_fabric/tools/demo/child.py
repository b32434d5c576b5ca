"""The first code of every child: tie its life to the parent's, then become the program that was asked for.

A parent that is killed outright can stop nothing any more, so the kernel is asked to do it. SGLang's own
child processes do the same with their parent, therefore the whole tree goes. (The kernel means the thread
that started us: start servers from a thread that lives as long as they should.)
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run ``argv[2:]``, to be killed when the process ``argv[1]`` ends."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before we could ask
        return
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
