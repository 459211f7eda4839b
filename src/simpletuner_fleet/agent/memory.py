"""Keeps the agent's memory small: what it has read and sent goes back to the system at once."""

import asyncio
import contextlib
import ctypes
from concurrent.futures import ThreadPoolExecutor

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
LARGE_BYTES = 128 * 1024
ARENAS = 2
THREADS = 40
"""Made as they are needed. A job whose disk hangs holds three or four of them, and what is told of other jobs needs one."""


def stay_small() -> None:
    """Keeps glibc from retaining freed buffers for every thread, and from learning to retain larger ones.

    Other C libraries know no `mallopt` and need none.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_ARENA_MAX, ARENAS)


def few_threads() -> None:
    """Limits the threads of the running loop for what would block it, however many cores the machine has."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "agent"))
