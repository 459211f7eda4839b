"""Finds and ends what a dead shim has left behind: every trainer's process carries its attempt in its environment."""

import logging
import os
import signal
import time
from pathlib import Path

log = logging.getLogger(__name__)

ATTEMPT_TAG = "SIMPLETUNER_ATTEMPT_ID"
SWEEP_FOR_S = 10.0
SWEEP_PAUSE_S = 0.01
PROC = Path("/proc")


def processes_of(attempt_id: str) -> list[int]:
    """The living processes tagged with this attempt. Those of other users cannot be read and are not ours."""
    tag = f"{ATTEMPT_TAG}={attempt_id}".encode()
    return [
        pid for pid in _pids() if pid != os.getpid() and tag in _environ(pid).split(b"\0") and not _dead(pid)
    ]


def sweep(attempt_id: str, limit_s: float = SWEEP_FOR_S) -> int:
    """Kills until two looks in a row find none; returns how many it found. Blocks: call it in a thread."""
    give_up_at = time.monotonic() + limit_s
    killed_pids: set[int] = set()
    clean_looks = 0
    while clean_looks < 2 and time.monotonic() < give_up_at:
        pids = processes_of(attempt_id)
        for pid in pids:
            _kill(pid)
        killed_pids.update(pids)
        clean_looks = 0 if pids else clean_looks + 1
        if clean_looks < 2:
            time.sleep(SWEEP_PAUSE_S)
    if clean_looks < 2:
        log.error("processes of attempt %s do not die: %s", attempt_id, sorted(processes_of(attempt_id)))
    return len(killed_pids)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir(PROC) if name.isdigit()]
    except OSError:
        return []


def _environ(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""


def _dead(pid: int) -> bool:
    try:
        return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        log.warning("process %d may not be ended by this user", pid)
