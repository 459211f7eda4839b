"""Real programs under test: started, signalled by their id, read, and ended to the last process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.e2e.warm_start import WARM, WarmProcess

T = TypeVar("T")
SIMPLETUNER = Path(sys.executable).with_name("simpletuner")
SYSTEMS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""A worker asks every Python on its path for the trainer; those of a version manager take long to answer."""
PATIENCE_S = 30.0
"""For what takes milliseconds on an idle machine: tests must hold on a busy one."""
LOOK_AGAIN_S = 0.02
LOOK_AGAIN_AT_MOST_S = 0.1
WAITS_LONGER_BY = 0.05
"""The share of the time waited so far that passes between two looks: hundreds of looks cost more than what is awaited."""


def wait_until(condition: Callable[[], T], what: str, within_s: float = PATIENCE_S) -> T:
    """The first true answer; AssertionError with `what` if there is none in time."""
    began = time.monotonic()
    while True:
        answer = condition()
        if answer:
            return answer
        waited_s = time.monotonic() - began
        assert waited_s < within_s, f"not in {within_s:g} s: {what}; last seen: {answer!r}"
        time.sleep(min(max(LOOK_AGAIN_S, waited_s * WAITS_LONGER_BY), LOOK_AGAIN_AT_MOST_S))


class Program:
    """One process with its output in a file.

    `warm`: of a Python that has loaded our code already. Others then see another command line than `argv`.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        warm: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        self.process: subprocess.Popen[bytes] | WarmProcess
        if warm and WARM.suits(environment):
            log.touch()
            self.process = WARM.start(argv, environment, log.parent, log)
            return
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                argv,
                env=dict(environment),
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        return self.process.wait(within_s)

    def says(self, words: str, within_s: float = PATIENCE_S) -> str:
        """Waits until it has printed these words."""
        return wait_until(
            lambda: self.text if words in self.text else "", f"{self.name} says {words!r}", within_s
        )


def alive(pid: int) -> bool:
    try:
        return stat_of(pid)[0] not in ("Z", "X")
    except OSError:
        return False


def stopped(pid: int) -> bool:
    try:
        return stat_of(pid)[0] == "T"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(stat_of(pid)[1])


def shim_of(trainer: int) -> int:
    """Its second guardian stands between them."""
    return parent_of(parent_of(trainer))


def stat_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def end_everything_under(folder: Path) -> None:
    """Kills what still works in this folder: trainers and shims outlive their agents on purpose."""
    deadline = time.monotonic() + PATIENCE_S
    while processes := living_under(folder):
        assert time.monotonic() < deadline, f"processes that do not die: {processes}"
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(LOOK_AGAIN_S)


def living_under(folder: Path) -> list[int]:
    processes = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            where = os.readlink(entry / "cwd")
        except OSError:
            continue
        if (where == str(folder) or where.startswith(f"{folder}/")) and alive(int(entry.name)):
            processes.append(int(entry.name))
    return processes
