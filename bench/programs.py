"""The real programs, on loopback, in a folder that is removed when they have ended."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.machine import cpu_s

SIMPLETUNER = (str(Path(sys.executable).with_name("simpletuner")),)
UP_WITHIN_S = 60.0
DOWN_WITHIN_S = 30.0
POLL_S = 0.02
GPU = [{"name": "NVIDIA A100-SXM4-80GB", "vram_gb": 80, "count": 1}]


class BenchmarkFailed(Exception):
    """A program did not do, or not in time, what the benchmark needs: its rows are missing."""


@contextmanager
def scratch() -> Iterator[Path]:
    """Yields a folder on a real disk: a promise about durability is not measured in memory."""
    folder = Path(tempfile.mkdtemp(prefix="simpletuner-bench-", dir=os.environ.get("SIMPLETUNER_BENCH_DIR")))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def jobs_folder(folder: Path) -> Path:
    """Returns a folder that jobs may write to, behind the wall that every attempt has."""
    shared = folder / "jobs"
    shared.mkdir(exist_ok=True)
    shared.chmod(0o777)
    return shared


def environment(folder: Path, **more: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SIMPLETUNER_")}
    return {**inherited, "XDG_CONFIG_HOME": str(folder / "config"), "NO_COLOR": "1", **more}


@contextmanager
def started(argv: Sequence[str], env: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs a program; at the end it is asked to stop, and killed if it does not."""
    with log.open("ab") as output:
        program = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield program
    finally:
        program.terminate()
        end(program)


def end(program: "subprocess.Popen[bytes]") -> None:
    """Waits for a program that was asked to stop, and kills it if it does not."""
    try:
        program.wait(DOWN_WITHIN_S)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def wait_until(condition: Callable[[], bool], what: str, within_s: float = UP_WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkFailed(f"{what}: not within {within_s:g} s")
        time.sleep(POLL_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Server:
    def __init__(
        self, process: "subprocess.Popen[bytes]", url: str, admin_token: str, ca_file: Path | None = None
    ) -> None:
        self.process = process
        self.url = url
        self.admin_token = admin_token
        self.ca_file = ca_file
        self._tls = ssl.create_default_context(cafile=ca_file) if ca_file else None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._call("POST", path, json.dumps(body).encode())

    def put_config(self, name: str, bundle: dict[str, Any]) -> None:
        self._call("PUT", f"/api/configs/{name}", json.dumps(bundle).encode())

    def get(self, path: str) -> dict[str, Any]:
        return self._call("GET", path, None)

    def _call(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.admin_token}", "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30, context=self._tls) as answer:
            content: dict[str, Any] = json.loads(answer.read())
            return content


@contextmanager
def running_server(
    folder: Path,
    database_url: str | None = None,
    *,
    tls: bool = False,
    program: Sequence[str] = SIMPLETUNER,
    **more: str,
) -> Iterator[Server]:
    """Runs a server with its default settings, so on SQLite with `synchronous = FULL` where no URL says otherwise.

    `more` are environment variables.
    """
    home = folder / "server"
    settings = {"SIMPLETUNER_HOME": str(home), **more}
    if database_url:
        settings["SIMPLETUNER_DATABASE_URL"] = database_url
    argv = [*program, "server", "--port", "0", "--no-local", *(["--ssl"] if tls else [])]
    with started(argv, environment(folder, **settings), folder / "server.log") as process:
        url = _announced_url(process, home / "server.json", folder / "server.log")
        admin_token = (home / "admin_token").read_text().strip()
        yield Server(process, url, admin_token, home / "tls" / "ca.pem" if tls else None)


def _announced_url(process: "subprocess.Popen[bytes]", announcement: Path, log: Path) -> str:
    deadline = time.monotonic() + UP_WITHIN_S
    while time.monotonic() < deadline:
        if announcement.exists():
            return str(json.loads(announcement.read_text())["url"])
        if process.poll() is not None:
            break
        time.sleep(POLL_S)
    raise BenchmarkFailed(f"the server did not start:\n{log.read_text()}")


@contextmanager
def running_agents(server: Server, folder: Path, count: int = 1) -> Iterator[list[int]]:
    """Runs real workers, one declared GPU each, connected and idle; yields their process ids."""
    with ExitStack() as stack:
        pids = [stack.enter_context(_agent(server, folder, f"bench-{number}")).pid for number in range(count)]
        wait_until(lambda: _all_idle(server), "the workers connect")
        yield pids


def _all_idle(server: Server) -> bool:
    return all(worker["status"] == "idle" for worker in server.get("/api/admin/workers")["workers"])


@contextmanager
def _agent(server: Server, folder: Path, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    created = server.post("/api/admin/workers", {"name": name})
    token_file = folder / f"{name}.token"
    token_file.touch(mode=0o600)
    token_file.write_text(created["token"])
    argv = [*SIMPLETUNER, "worker", "--orchestrator-url", server.url, "--persistent", "--name", name]
    argv += ["--worker-token-file", str(token_file), "--work-dir", str(folder / name)]
    argv += ["--job-path", f"{jobs_folder(folder)}:rw"]
    env = environment(folder, SIMPLETUNER_GPU_INVENTORY=json.dumps(GPU))
    with started(argv, env, folder / f"{name}.log") as process:
        yield process
