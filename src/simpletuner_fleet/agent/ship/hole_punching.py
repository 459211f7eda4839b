"""Frees disk space in the middle of a file that another program goes on writing to, and reserves some behind an end."""

import ctypes
import os
import sys
from pathlib import Path

from simpletuner_fleet.trainers.job_files import open_descriptor

FALLOC_FL_KEEP_SIZE = 1
FALLOC_FL_PUNCH_HOLE = 2


def punch_hole(path: Path, start: int, end: int) -> bool:
    """Frees these bytes, which are read as zeros; no offset changes. Returns False where the file system cannot."""
    if sys.platform != "linux" or start >= end:
        return False
    try:
        file = open_descriptor(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        return _fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end)
    finally:
        os.close(file)


def reserve(file: int, start: int, end: int) -> bool:
    """Has these bytes of an open file find room once they are written; its size stays. Returns False where that fails."""
    return sys.platform == "linux" and _fallocate(file, FALLOC_FL_KEEP_SIZE, start, end)


def _fallocate(file: int, how: int, start: int, end: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(libc.fallocate(file, how, start, end - start) == 0)
