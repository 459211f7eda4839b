"""Starts the agent's shims: a zygote forks them, or each is started by itself where there is none."""

import contextlib
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from simpletuner_fleet.agent.guard.shim_client import ReadyWall, ShimLink

log = logging.getLogger(__name__)

SHIM = Path(__file__).with_name("shim.py")
ZYGOTE = Path(__file__).with_name("shim_zygote.py")
KEPT_VARIABLES = (
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "LANG",
    "LC_ALL",
    "TZ",
)
"""A shim gets no more of the worker's environment: a trainer may read what its parent was started with."""
ZYGOTE_ANSWERS_WITHIN_S = 5.0
ZYGOTE_ENDS_WITHIN_S = 5.0
"""The first answer comes once it has imported everything."""
NEXT_ZYGOTE_AFTER_S = 60.0
"""Where one has ended without having forked anything, so would the next."""
SHIM_LEAVES_WITHIN_S = 10.0
ANSWER = struct.Struct("=i")


class ShimChild(Protocol):
    """Represents a shim's process. A `Popen` is one, too."""

    pid: int

    def poll(self) -> int | None:
        """Returns None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Raises TimeoutExpired."""

    def kill(self) -> None: ...


class ForkedShim:
    """Represents the process of a shim that the zygote has forked.

    The zygote waits for it and keeps its exit status to itself; how the shim ended is told on its own connection.
    """

    def __init__(self, pid: int, process: int) -> None:
        """`process` is a descriptor of it, which stays its own when its number is another's."""
        self.pid = pid
        self._process = process
        os.set_inheritable(process, False)
        self._close = weakref.finalize(self, os.close, process)

    def poll(self) -> int | None:
        return 0 if self._ends_within(0) else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ends_within(timeout):
            raise subprocess.TimeoutExpired(str(ZYGOTE), timeout or 0.0)
        self._close()
        return 0

    def kill(self) -> None:
        if self._close.alive:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)

    def _ends_within(self, timeout_s: float | None) -> bool:
        if not self._close.alive:
            return True
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


class _Zygote(Struct):
    process: subprocess.Popen[bytes]
    line: socket.socket
    has_forked: bool = False


class _ZygoteGone(Exception):
    pass


class ShimStarter:
    """Starts shims: a zygote forks them, or each is started by itself where there is none.

    It blocks, and may be used from several threads.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._lock = threading.Lock()
        self._zygote: _Zygote | None = None
        self._next_zygote_at = 0.0 if has_process_descriptors() else float("inf")

    def start(self) -> tuple[ShimChild, socket.socket]:
        """Returns a shim's process and our end of the connection to it. Raises OSError."""
        with self._lock:
            if time.monotonic() >= self._next_zygote_at:
                try:
                    return _with_line(self._fork)
                except _ZygoteGone as error:
                    log.warning("the process that forks guardians is gone (%s): one starts by itself", error)
                    self._end_zygote()
        # On a line of its own: the zygote may have forked a shim just before it was given up, and that one has the other.
        return _with_line(lambda line: _spawn(self._python, SHIM, line))

    def close(self) -> None:
        """Ends the zygote; its shims stay."""
        with self._lock:
            self._end_zygote()
            self._next_zygote_at = float("inf")

    def _fork(self, line: socket.socket) -> ForkedShim:
        if self._zygote is None:
            self._zygote = self._start_zygote()
        zygote = self._zygote
        try:
            socket.send_fds(zygote.line, [b"f"], [line.fileno()])
            answer, descriptors, _, _ = socket.recv_fds(zygote.line, ANSWER.size, 1)
        except OSError as error:
            raise _ZygoteGone(str(error)) from error
        if not answer:
            raise _ZygoteGone("it has ended")
        (pid,) = ANSWER.unpack(answer)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        zygote.has_forked = True
        return ForkedShim(pid, descriptors[0])

    def _start_zygote(self) -> _Zygote:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(ZYGOTE_ANSWERS_WITHIN_S)
        with theirs:
            try:
                return _Zygote(_spawn(self._python, ZYGOTE, theirs), ours)
            except OSError:
                ours.close()
                raise

    def _end_zygote(self) -> None:
        zygote, self._zygote = self._zygote, None
        if zygote is None:
            return
        if not zygote.has_forked:
            self._next_zygote_at = time.monotonic() + NEXT_ZYGOTE_AFTER_S
        zygote.line.close()
        zygote.process.kill()
        try:
            zygote.process.wait(ZYGOTE_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:  # in a call that nothing ends, such as one to a dead file server
            log.warning("the process that forks guardians does not end: it is left behind")


def _with_line(start: Callable[[socket.socket], ShimChild]) -> tuple[ShimChild, socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            return start(theirs), ours
        except BaseException:
            ours.close()
            raise


def has_process_descriptors() -> bool:
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def _spawn(python: str, program: Path, line: socket.socket) -> subprocess.Popen[bytes]:
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return subprocess.Popen(
        [python, "-I", "-S", str(program)],
        stdin=line.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd="/",
        start_new_session=True,
    )


def reap(child: ShimChild) -> bool:
    """Waits for the end of a shim that has nothing more to do, and kills one that hangs; False where that does not help."""
    try:
        child.wait(SHIM_LEAVES_WITHIN_S)
    except subprocess.TimeoutExpired:
        log.warning("shim %d has closed its line and does not end: it is killed", child.pid)
        return killed(child)
    return True


def killed(child: ShimChild) -> bool:
    """Kills a shim; False where it does not die in time."""
    child.kill()
    try:
        child.wait(SHIM_LEAVES_WITHIN_S)
    except subprocess.TimeoutExpired:
        log.error("shim %d does not die", child.pid)
        return False
    return True


_LEFT_ALONE: list[ShimChild] = []
"""Kept, because Python complains of a process that nobody remembers."""


def leave_alone(child: ShimChild) -> None:
    if isinstance(child, subprocess.Popen) and child.poll() is None:
        _LEFT_ALONE.append(child)


class ShimProcess(Struct, frozen=True, eq=False):
    """Represents a shim, the process that guards an attempt. It may have no attempt yet."""

    link: ShimLink
    child: ShimChild | None
    ready: ReadyWall | None = None
    """The wall that it has built for whatever comes."""

    def end(self, attempt_dir: Path) -> None:
        """Kills the shim of this attempt, which hangs, and hangs up."""
        log.error("the shim of attempt %s does not answer; it is ended", attempt_dir.name)
        if self.child is not None:
            self.child.kill()
        else:
            self.link.kill_shim(attempt_dir)
        self.link.close()

    def leave_alone(self) -> None:
        """Closes the connection; the shim goes on by its lease, as it does when the agent dies."""
        self.link.close()
        if self.child is not None:
            leave_alone(self.child)
