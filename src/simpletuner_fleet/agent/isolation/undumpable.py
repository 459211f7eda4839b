"""Hides the agent's memory, and the environment it was started with, from every process of its own user."""

import ctypes
import sys

PR_SET_DUMPABLE = 4


def become_undumpable() -> None:
    """Makes this process undumpable: it leaves no core dump.

    Neither a debugger nor `/proc/<pid>/environ` and `mem` shows it any more, except to root.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
