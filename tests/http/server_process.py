"""A real `simpletuner server` in a process of its own, forked from a Python that has loaded our code already."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from msgspec import Struct

from tests.e2e.warm_start import READ_BY_PYTHON, WARM, WarmProcess
from tests.http.api_kit import UNUSED_TLS

START_S = 20.0
PASSED_ON = ("PYTHONPATH", "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
AnyProcess = subprocess.Popen[bytes] | WarmProcess


class ServerProcess(Struct):
    process: AnyProcess
    url: str
    home: Path
    log: Path

    @property
    def admin_token(self) -> str:
        return (self.home / "admin_token").read_text().strip()

    def client(self, **headers: str) -> httpx2.Client:
        given = headers or {"Authorization": f"Bearer {self.admin_token}"}
        return httpx2.Client(base_url=self.url, headers=given, trust_env=False, verify=UNUSED_TLS, timeout=10)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> float:
        """Seconds from SIGTERM to the end."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        return time.monotonic() - began


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "simpletuner_fleet.cli.main", "server", *arguments]


def environment(home: Path, **more: str) -> dict[str, str]:
    left_out = ("SIMPLETUNER_", *READ_BY_PYTHON)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_ON or not name.startswith(left_out)
    }
    own = {"LANG": "C.UTF-8", "SIMPLETUNER_HOME": str(home), "XDG_CONFIG_HOME": str(home / "xdg")}
    return {**kept, **own, **more}


def started(
    home: Path, log: Path, arguments: Sequence[str], variables: Mapping[str, str], *, cold: bool = False
) -> AnyProcess:
    """A server that writes to the log what it says. `cold`: by the very command that a person types."""
    given = environment(home, **variables)
    if not cold and WARM.suits(given):
        return WARM.start(["simpletuner", "server", *arguments], given, home.parent, log)
    with log.open("ab") as output:
        return subprocess.Popen(command(*arguments), env=given, stdout=output, stderr=output)


@contextmanager
def server_process(
    home: Path, *arguments: str, port: int = 0, cold: bool = False, **variables: str
) -> Iterator[ServerProcess]:
    log = home.with_name(home.name + ".log")
    log.touch()
    (home / "server.json").unlink(missing_ok=True)
    process = started(home, log, ("--port", str(port), *arguments), variables, cold=cold)
    try:
        yield ServerProcess(process, _url_of(process, home, log), home, log)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(20)


def _url_of(process: AnyProcess, home: Path, log: Path) -> str:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            said: dict[str, Any] = json.loads((home / "server.json").read_text())
            return str(said["url"])
        except (OSError, ValueError):
            time.sleep(0.02)
    raise AssertionError(f"the server did not start: {log.read_text()}")
