"""What a program is told by the library between it and the C library: how false its clock is, and how its disk fails."""

import mmap
import os
import shutil
import struct
import subprocess
from enum import IntFlag
from pathlib import Path

SOURCE = Path(__file__).with_name("interposed.c")
LAYOUT = struct.Struct("=dQ")


class Failing(IntFlag):
    """Calls that end with EIO on files of the database, as interposed.c numbers them."""

    NOTHING = 0
    SYNC = 1
    WRITE = 2
    READ = 4


def built_library(folder: Path) -> Path | None:
    """None where there is no C compiler, or it does not do."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "interposed.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl", "-lm"]
    return library if subprocess.run(words, capture_output=True, check=False).returncode == 0 else None


class Orders:
    """For one program, read by it at once; they outlive its restarts, as a machine's clock does."""

    def __init__(self, library: Path, file: Path) -> None:
        file.write_bytes(LAYOUT.pack(0.0, 0))
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        self._mapped = mmap.mmap(descriptor, LAYOUT.size)
        os.close(descriptor)
        self._clock_off_s = 0.0
        self._failing = Failing.NOTHING
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_ORDERS": str(file)}

    def set_clock(self, off_s: float) -> None:
        self._clock_off_s = off_s
        self._tell()

    def fail(self, calls: Failing) -> None:
        self._failing = calls
        self._tell()

    def _tell(self) -> None:
        self._mapped[: LAYOUT.size] = LAYOUT.pack(self._clock_off_s, self._failing)
