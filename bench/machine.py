"""The machine: what it is, what it can do at most, and what its processes use."""

import os
import platform
import sqlite3
import time
from pathlib import Path

from msgspec import Struct

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Machine(Struct):
    cores: int
    memory_gib: float
    kernel: str
    architecture: str
    python: str
    sqlite: str
    load: float
    """Of the last minute, when the run began: others' work makes everything slower."""


def describe() -> Machine:
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE / 2**30
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory, 1),
        kernel=platform.release(),
        architecture=platform.machine(),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        load=round(os.getloadavg()[0], 2),
    )


def fork_exec_ms(times: int = 200) -> list[float]:
    """From asking for a process to its end, as cheaply as the machine can do it."""
    program = "/bin/true"
    found = []
    for _ in range(times):
        began = time.perf_counter()
        pid = os.posix_spawn(program, [program], {})
        os.waitpid(pid, 0)
        found.append((time.perf_counter() - began) * 1e3)
    return found


def fdatasync_ms(folder: Path, times: int = 200) -> list[float]:
    """4 KiB appended and on the disk."""
    found = []
    path = folder / "fdatasync"
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            found.append((time.perf_counter() - began) * 1e3)
    path.unlink()
    return found


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def cpu_s(pid: int) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def children(pid: int) -> dict[int, str]:
    """Direct children with their command lines."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found[int(child)] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip()
    return found
