"""Programs of a story that need not load their modules first; see `warm_process`."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.whole_run.leftovers import MARK
from tests.whole_run.template_cache import TEMPLATES

ROOT = Path(__file__).parents[2]
LOOK_AGAIN_S = 0.01
READ_BY_PYTHON = ("PYTHON", "COVERAGE_", "LC_", "LANG", "TZ")
"""What the interpreter reads before any of our code: a program whose own differs is started the usual way."""


class WarmProcess:
    """Looks like `subprocess.Popen`, as far as stories use it."""

    def __init__(self, maker: "WarmStart", words: Sequence[str], pid: int) -> None:
        self._maker = maker
        self.args = list(words)
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._maker.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(LOOK_AGAIN_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class WarmStart:
    """One process that makes programs, for all stories of one pytest process."""

    def __init__(self) -> None:
        self._environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            **{name: value for name, value in os.environ.items() if name in ("PYTHONPATH", MARK)},
        }
        self._line: socket.socket | None = None
        self._answers: Any = None
        self._asking = threading.Lock()

    def suits(self, environment: Mapping[str, str]) -> bool:
        def read_by_python(given: Mapping[str, str]) -> dict[str, str]:
            return {name: value for name, value in given.items() if name.startswith(READ_BY_PYTHON)}

        return read_by_python(environment) == read_by_python(self._environment)

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        errors: Path | None = None,
    ) -> WarmProcess:
        """Its output goes to `log`, and what it says of errors to a file of its own, if one is named."""
        asked = {
            "words": list(words),
            "environment": dict(environment),
            "folder": str(folder),
            "log": str(log),
            "errors": str(errors or log),
        }
        pid = self.ask(asked)
        assert isinstance(pid, int)
        return WarmProcess(self, words, pid)

    def run(
        self, words: Sequence[str], environment: Mapping[str, str], within_s: float
    ) -> "subprocess.CompletedProcess[str]":
        """One command to its end."""
        with tempfile.TemporaryDirectory() as folder:
            log, errors = Path(folder, "output"), Path(folder, "errors")
            process = self.start(words, environment, Path.cwd(), log, errors)
            try:
                exit_code = process.wait(within_s)
            finally:
                process.kill()
            return subprocess.CompletedProcess(words, exit_code, log.read_text(), errors.read_text())

    def ask(self, what: dict[str, Any]) -> int | None:
        with self._asking:
            if self._line is None:
                self._open()
            assert self._line is not None
            self._line.sendall(json.dumps(what).encode() + b"\n")
            answer = self._answers.readline()
        assert answer, "the process that starts programs has died"
        given: int | None = json.loads(answer)
        return given

    def _open(self) -> None:
        self._line, theirs = socket.socketpair()
        with theirs:
            words = [str(theirs.fileno()), *([str(TEMPLATES.path)] if TEMPLATES.path else [])]
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.warm_process", *words],
                env=self._environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._answers = self._line.makefile("rb")
        atexit.register(self._close, process)

    def _close(self, process: "subprocess.Popen[bytes]") -> None:
        """It ends when nobody can ask it any more."""
        assert self._line is not None
        self._answers.close()
        self._line.close()
        process.wait()


WARM = WarmStart()
