"""Keeps the agent's memory, and what it was started with, from every process of its own user."""

import ctypes
import sys

PR_SET_DUMPABLE = 4


def become_undumpable() -> None:
    """Neither a debugger nor `/proc/<pid>/environ` and `mem` shows it any more but to root; it leaves no core dump."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
