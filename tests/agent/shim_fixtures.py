"""What the shim's and the runner's tests share: real trainers, a real agent process, a real HTTP server."""

import asyncio
import json
import os
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.guard import orphans
from simpletuner_fleet.agent.guard.orphans import ATTEMPT_TAG
from simpletuner_fleet.agent.guard.runner import Runner, RunningTrainer
from simpletuner_fleet.agent.guard.shim_client import Order, ReportTo
from tests.quiet_server import QuietServer

PATIENCE_S = 30.0


def order_for(folder: Path, program: str | list[str], **changes: Any) -> Order:
    """An order whose trainer is a Python program, or an argv."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-I", "-S", "-c", program] if isinstance(program, str) else program
    facts: dict[str, Any] = {
        "attempt_id": folder.name,
        "attempt_dir": str(folder),
        "argv": argv,
        "env": {"PATH": os.environ["PATH"], ATTEMPT_TAG: folder.name},
        "cwd": str(folder),
        "output": str(folder / "output.log"),
    }
    return Order(**{**facts, **changes})


async def start(
    runner: Runner, order: Order, lease_s: float | None = None, leased_at: float | None = None
) -> RunningTrainer:
    """Both steps at once, as where nobody has to be asked in between."""
    return await runner.go(await runner.hold(await runner.take(), order), lease_s, leased_at)


async def until(true: Callable[[], Any], what: str = "it") -> Any:
    """Waits for a condition rather than for a time."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not (answer := true()):
        assert time.monotonic() < give_up_at, f"waited too long for {what}"
        await asyncio.sleep(0.005)
    return answer


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def pid_in(path: Path) -> int | None:
    text = read(path)
    return int(text) if text.endswith("\n") else None


def alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        return False


class Undying:
    """A process of an attempt that hangs in the driver, as the machine shows it: no signal ends it."""

    def __init__(self, attempt_id: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._shown = folder / "proc" / str(2**31 - 1)
        self._shown.mkdir(parents=True)
        (self._shown / "environ").write_text(f"{ATTEMPT_TAG}={attempt_id}\0")
        (self._shown / "stat").write_text(f"{self._shown.name} (python) D 1")
        monkeypatch.setattr(orphans, "PROC", self._shown.parent)
        monkeypatch.setattr(orphans, "SWEEP_FOR_S", 0.05)

    def die(self) -> None:
        (self._shown / "stat").write_text(f"{self._shown.name} (python) Z 1")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def shim_of(trainer: int) -> int:
    """Its second guardian stands between them."""
    return parent_of(parent_of(trainer))


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stops a process; whatever becomes of the test, it goes on afterwards and ends what it guards."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


DOUBLE_FORK = """
import os, signal, time
def daemon(name):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            with open(name + ".tmp", "w") as file:
                file.write(f"{os.getpid()}\\n")
            os.rename(name + ".tmp", name)
            time.sleep(600)
        os._exit(0)
    os.wait()
    while not os.path.exists(name):
        time.sleep(0.002)
daemon("daemon.pid")
"""
"""Leaves a daemon that has its own session, no living parent, and no ear for SIGTERM."""

TICKER = """
import time
ticks = open("ticks", "a", buffering=1)
while True:
    print("tick", file=ticks)
    time.sleep(0.005)
"""


TAKEN = {"accepted": True, "job_status": "completed"}


def too_late(status: int) -> dict[str, Any]:
    return {"type": "urn:simpletuner:problem:stale_attempt", "code": "stale_attempt", "status": status}


class Reports:
    """A server that keeps what it is told; the first answers are as given, all others 200."""

    def __init__(self, *answers: int) -> None:
        self.answers = list(answers)
        self.seen: list[tuple[str, str | None, dict[str, Any]]] = []


@contextmanager
def listening(reports: Reports, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reports.seen.append((self.path, self.headers["X-Upload-Token"], body))
            status = reports.answers.pop(0) if reports.answers else 200
            answer = json.dumps(TAKEN if status == 200 else too_late(status)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def report_to(url: str, **changes: Any) -> ReportTo:
    facts: dict[str, Any] = {
        "url": url,
        "job_id": "j_1",
        "epoch": 7,
        "attempt": 2,
        "upload_token": "ut_secret",
    }
    return ReportTo(**{**facts, **changes})
