"""The real programs, on loopback, in a folder that goes when they have gone."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.machine import cpu_s

SIMPLETUNER = Path(sys.executable).with_name("simpletuner")
UP_WITHIN_S = 60.0
DOWN_WITHIN_S = 30.0
LOOK_AGAIN_S = 0.02
GPU = [{"name": "NVIDIA A100-SXM4-80GB", "vram_gb": 80, "count": 1}]


class NotInTime(Exception):
    """A program did not do in time what the benchmark waits for."""


@contextmanager
def scratch() -> Iterator[Path]:
    """On a real disk: a promise about durability is not measured in memory."""
    folder = Path(tempfile.mkdtemp(prefix="simpletuner-bench-", dir=os.environ.get("SIMPLETUNER_BENCH_DIR")))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SIMPLETUNER_")}
    return {**kept, "XDG_CONFIG_HOME": str(folder / "config"), "NO_COLOR": "1", **more}


@contextmanager
def started(argv: list[str], env: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Asked to end at the end, and made to if it does not."""
    with log.open("ab") as output:
        program = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield program
    finally:
        program.terminate()
        try:
            program.wait(DOWN_WITHIN_S)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


class Server:
    def __init__(self, process: "subprocess.Popen[bytes]", url: str, admin_token: str) -> None:
        self.process = process
        self.url = url
        self.admin_token = admin_token

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
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found


@contextmanager
def running_server(folder: Path, database_url: str | None = None) -> Iterator[Server]:
    """With every setting at its default, so in SQLite with `synchronous = FULL` unless told otherwise."""
    home = folder / "server"
    more = {"SIMPLETUNER_HOME": str(home)}
    if database_url:
        more["SIMPLETUNER_DATABASE_URL"] = database_url
    argv = [str(SIMPLETUNER), "server", "--port", "0", "--no-local"]
    with started(argv, environment(folder, **more), folder / "server.log") as process:
        url = _url_told_by(process, home / "server.json", folder / "server.log")
        yield Server(process, url, (home / "admin_token").read_text().strip())


def _url_told_by(process: "subprocess.Popen[bytes]", told: Path, log: Path) -> str:
    deadline = time.monotonic() + UP_WITHIN_S
    while time.monotonic() < deadline:
        if told.exists():
            return str(json.loads(told.read_text())["url"])
        if process.poll() is not None:
            break
        time.sleep(LOOK_AGAIN_S)
    raise NotInTime(f"the server did not come up:\n{log.read_text()}")


@contextmanager
def running_agents(server: Server, folder: Path, count: int = 1) -> Iterator[list[int]]:
    """Real workers, one declared GPU each, connected and idle; their process ids."""
    with ExitStack() as stack:
        pids = [stack.enter_context(_agent(server, folder, f"bench-{number}")).pid for number in range(count)]
        deadline = time.monotonic() + UP_WITHIN_S
        while any(worker["status"] != "idle" for worker in server.get("/api/admin/workers")["workers"]):
            if time.monotonic() > deadline:
                raise NotInTime("the workers did not connect")
            time.sleep(LOOK_AGAIN_S)
        yield pids


@contextmanager
def _agent(server: Server, folder: Path, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    created = server.post("/api/admin/workers", {"name": name})
    token_file = folder / f"{name}.token"
    token_file.touch(mode=0o600)
    token_file.write_text(created["token"])
    argv = [str(SIMPLETUNER), "worker", "--orchestrator-url", server.url, "--persistent", "--name", name]
    argv += ["--worker-token-file", str(token_file), "--work-dir", str(folder / name)]
    env = environment(folder, SIMPLETUNER_GPU_INVENTORY=json.dumps(GPU))
    with started(argv, env, folder / f"{name}.log") as process:
        yield process
