"""Ends what a run of the tests has started, where the run itself was killed before it could.

Programs of the tests lead sessions of their own, and a PostgreSQL is a daemon of another user: neither ends with pytest.
What they all have is the environment that they were started with, and in it the mark of their run.
"""

import os
import secrets
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "FLEET_TEST_RUN"
PATIENCE_S = 10.0
LOOK_EVERY_S = 0.1


def end_with_this_run() -> None:
    """Marks all that this process starts from now on, and starts the program that ends it."""
    if MARK in os.environ or not hasattr(os, "pidfd_open"):
        return
    os.environ[MARK] = secrets.token_hex(8)
    nowhere = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)]
    words = [sys.executable, "-I", "-S", __file__, str(os.getpid()), os.environ[MARK]]
    os.posix_spawn(sys.executable, words, {}, file_actions=nowhere, setsid=True)


def wait_for_end_of(pid: int) -> None:
    try:
        runner = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    if os.getppid() == pid:
        select.select([runner], [], [])


def marked(mark: str) -> list[int]:
    wanted = f"{MARK}={mark}".encode()
    left = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                left.append(int(entry.name))
    return left


def end(mark: str) -> None:
    """Asks all that is left to end, and kills what does not."""
    patient_until = time.monotonic() + PATIENCE_S
    asked: set[int] = set()
    while left := marked(mark):
        impatient = time.monotonic() > patient_until
        for pid in left if impatient else set(left) - asked:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if impatient else signal.SIGTERM)
        asked.update(left)
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    wait_for_end_of(int(sys.argv[1]))
    end(sys.argv[2])
