"""Erases secrets from a program's initial environment, which `/proc/<pid>/environ` shows to its children.

Removing a variable from `os.environ` alone leaves its value in the memory where the kernel put it.
"""

import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path

ENV_START, ENV_END = 47, 48
"""In /proc/self/stat, counted from the state on."""


def erase(names: Iterable[str]) -> None:
    """Overwrites the values of these variables where the kernel put them; take them out of `os.environ` first."""
    if sys.platform != "linux":
        return
    start, size = _bounds()
    if size <= 0:
        return
    at = start
    for entry in ctypes.string_at(start, size).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and os.fsdecode(name) in names:
            ctypes.memset(at + len(name) + 1, ord("x"), len(value))
        at += len(entry) + 1


def _bounds() -> tuple[int, int]:
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[ENV_START]), int(fields[ENV_END])
    except (OSError, IndexError, ValueError):
        return 0, 0
    return start, end - start
