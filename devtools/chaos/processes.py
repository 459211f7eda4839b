"""Real processes: started, found again through /proc, and signalled by their id alone."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

SIMPLETUNER = Path(sys.executable).with_name("simpletuner")
PROC = Path("/proc")
LOOKS_AT_ENVIRONMENT = 100


class Program:
    """One program after another under the same name, all writing to one log."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        before: Sequence[str] = (),
    ) -> None:
        """`before` is a command that becomes the program: one that puts it into a namespace."""
        self.name = name
        self._argv = [*before, str(SIMPLETUNER), *argv]
        self.environment = dict(environment)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def starved_s(self) -> float:
        """For how long its main thread was ready to run and had no processor."""
        try:
            return int((PROC / str(self.pid) / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0

    def catches(self, number: int) -> bool:
        """Whether it has said what to do at this signal: until then, the kernel's own answer may be to end it."""
        if not self.alive:
            return False
        try:
            status = (PROC / str(self.pid) / "status").read_text()
        except OSError:
            return False
        return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def limit_files(self, size: int | None) -> None:
        """Keeps it from making any file larger than this."""
        assert self._process is not None
        soft = resource.RLIM_INFINITY if size is None else size
        with suppress(ProcessLookupError):
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def parent_of(pid: int) -> int | None:
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def is_guarded(trainer: int, shims: set[int]) -> bool:
    """Tells whether one of these is its first guardian; its second one stands between them."""
    keeper = parent_of(trainer)
    return keeper is not None and (keeper in shims or parent_of(keeper) in shims)


def is_dead(pid: int) -> bool:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except (OSError, IndexError):
        return True


def trainers_under(folder: Path) -> list[int]:
    """Returns every living process of any attempt in this folder, by the environment it was started with."""
    tag = f"SIMPLETUNER_OUTPUT_DIR={folder}/".encode()
    pids = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "environ").read_bytes().split(b"\0")
                if any(word.startswith(tag) for word in words) and not is_dead(int(entry.name)):
                    pids.append(int(entry.name))
    return pids


def shims_under(folder: Path) -> list[int]:
    """Returns guardians with an attempt: each works in its attempt's folder."""
    trainers = set(trainers_under(folder))
    pids = []
    for entry in PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) not in trainers:
            with suppress(OSError):
                where = os.readlink(entry / "cwd")
                if where.startswith(f"{folder}/attempts/") and not is_dead(int(entry.name)):
                    pids.append(int(entry.name))
    # Between fork and exec a trainer looks like its guardian, and its second guardian always does.
    return [pid for pid in pids if parent_of(pid) not in pids]


def attempt_of(shim: int) -> str:
    """Returns the attempt that it guards, or nothing if it has none any more."""
    try:
        return Path(os.readlink(PROC / str(shim) / "cwd")).name
    except OSError:
        return ""


def attempt_run_by(trainer: int) -> str:
    """Returns the attempt that a process was started for, or nothing if it is gone."""
    words = _environment_of(trainer)
    folders = (os.fsdecode(word) for word in words if word.startswith(b"SIMPLETUNER_OUTPUT_DIR="))
    return next(folders, "").partition("/attempts/")[2].partition("/")[0]


def _environment_of(pid: int) -> list[bytes]:
    """Looks again for a moment where there is none: a program that is just being executed has not got its own yet."""
    for _ in range(LOOKS_AT_ENVIRONMENT):
        try:
            text = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            return []
        if text:
            return text.split(b"\0")
        time.sleep(0.01)
    return []


def end_everything_under(folders: Sequence[Path]) -> None:
    for folder in folders:
        for pid in [*shims_under(folder), *trainers_under(folder)]:
            send(pid, signal.SIGKILL)
