"""A fleet of real processes for one test: a server, workers, trainers, and a client that looks on."""

import json
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from devtools.ports import free_port
from tests.e2e.first_database import give_database
from tests.e2e.journal import Journal
from tests.e2e.processes import (
    PATIENCE_S,
    SIMPLETUNER,
    SYSTEMS_PATH,
    Program,
    end_everything_under,
    shim_of,
    wait_until,
)
from tests.e2e.warm_start import WARM
from tests.whole_run.leftovers import MARK

Json = dict[str, Any]
TRAINER = Path(__file__).with_name("trainer.py")
FAST = {
    "SIMPLETUNER_HEARTBEAT_INTERVAL": "0.2",
    "SIMPLETUNER_HEARTBEAT_TIMEOUT": "2.0",
    "SIMPLETUNER_RETRY_BACKOFF": "0.2",
    "SIMPLETUNER_PING_INTERVAL": "0.5",
    "SIMPLETUNER_OFFER_RESEND": "0.3",
    "SIMPLETUNER_CANCEL_GRACE": "2",
}
PASSED_ON = ("PYTHONPATH", "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START", MARK)
A100 = [{"name": "NVIDIA A100-SXM4-80GB", "vram_gb": 80, "count": 1}]
COMMAND_WITHIN_S = 60.0
TERMINAL = ("completed", "failed", "cancelled")
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody: a client of its own making would read whom the machine trusts, for a tenth of a second."""


class Worker:
    """A worker as the orchestrator knows it, and the program that is it now."""

    def __init__(self, world: "World", created: Json, work_dir: Path, environment: Mapping[str, str]) -> None:
        self._world = world
        self.id: str = created["worker_id"]
        self.token: str = created["token"]
        self.name: str = created["name"]
        self.work_dir = work_dir
        self.environment = dict(environment)
        self.arguments: list[str] = []
        self.program: Program | None = None

    def start(self, *more: str) -> Program:
        """Again with the same words, unless others are given."""
        self.arguments = list(more) or self.arguments
        self.program = self._world.start(f"worker {self.name}", "worker", *self.arguments, **self.environment)
        return self.program

    @property
    def running(self) -> Program:
        assert self.program is not None
        return self.program

    @property
    def status(self) -> str:
        return str(self.seen["status"])

    @property
    def seen(self) -> Json:
        return self._world.get(f"/api/admin/workers/{self.id}")

    def becomes(self, status: str, within_s: float = PATIENCE_S) -> "Worker":
        wait_until(lambda: self.status == status, f"{self.name} becomes {status}", within_s)
        return self

    def kill_machine(self, job_id: str) -> None:
        """What a power cut does: agent, shim and trainer are gone at once, and nobody reports."""
        shim = self._world.shim_of(job_id)
        self.running.signal(9)
        os.kill(shim, 9)
        self.running.wait()


class World:
    """Everything lives under `folder`; `close` ends every process that does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "server"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.programs: list[Program] = []
        self.server: Program | None = None
        self.client = httpx2.Client(timeout=PATIENCE_S, trust_env=False, verify=NO_TLS)
        self.journal = Journal(folder / "journal")
        self.settings: dict[str, str] = dict(FAST)
        self.local_as_usual = False
        self.warm = True
        self._server_arguments: list[str] = []
        self._gates = 0
        self.environment = {
            **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
            "PATH": SYSTEMS_PATH,
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            # The trainers of these stories are known by their pid and write to a journal of the test's own;
            # walls have tests of their own, in tests/attacks/jobs/test_job_isolation.py.
            "SIMPLETUNER_ISOLATION": "none",
            # A story of a full disk says so itself; the others do not depend on the machine that tells them.
            "SIMPLETUNER_MIN_FREE_GB": "0",
            "SIMPLETUNER_KEEP_FREE_GB": "0",
        }

    def use_tls(self) -> None:
        """The client looks on without asking who answers; whom the workers trust is the tests' business."""
        self.url = f"https://127.0.0.1:{self.port}"
        self.client.close()
        self.client = httpx2.Client(timeout=PATIENCE_S, trust_env=False, verify=False)

    # Programs

    def start(self, program_name: str, *arguments: str, **environment: str) -> Program:
        log = self.folder / f"{len(self.programs)}-{re.sub('[^a-z0-9-]', '-', program_name.lower())}.log"
        words = [str(SIMPLETUNER), *arguments]
        program = Program(program_name, words, {**self.environment, **environment}, log, warm=self.warm)
        self.programs.append(program)
        return program

    def start_server(self, *arguments: str, **settings: str) -> Program:
        """Waits until it is ready. No agent runs beside it unless asked for."""
        self.settings.update(settings)
        words = arguments if self.local_as_usual else ("--no-local", *arguments)
        self._server_arguments = ["--port", str(self.port), *words]
        if self.warm and "SIMPLETUNER_DATABASE_URL" not in self.settings:
            give_database(self.home)
        return self.restart_server()

    def restart_server(self) -> Program:
        self.server = self.launch_server()
        self.await_ready()
        return self.server

    def launch_server(self) -> Program:
        self.server = self.start(
            "server", "server", *self._server_arguments, SIMPLETUNER_HOME=str(self.home), **self.settings
        )
        return self.server

    def await_ready(self) -> None:
        server = self.orchestrator
        wait_until(lambda: not server.alive or self._ready(), "the server is ready")
        assert server.alive, f"the server did not start:\n{server.text}"

    def _ready(self) -> bool:
        try:
            return self.client.get(f"{self.url}/health/ready").status_code == 200
        except httpx2.TransportError:
            return False

    @property
    def orchestrator(self) -> Program:
        assert self.server is not None
        return self.server

    def kill_server(self) -> None:
        self.orchestrator.kill()

    def cli(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """One command to its end, on the orchestrator's own machine."""
        given = {**self.environment, "SIMPLETUNER_HOME": str(self.home), **environment}
        if self.warm and WARM.suits(given):
            return WARM.run([str(SIMPLETUNER), *arguments], given, COMMAND_WITHIN_S)
        return subprocess.run(
            [SIMPLETUNER, *arguments],
            env=given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )

    # Workers

    def create_worker(self, name: str, **options: Any) -> Worker:
        created = self.post("/api/admin/workers", {"name": name, **options})
        return self.worker_of(created)

    def worker_of(self, created: Json, gpus: list[Json] | None = A100) -> Worker:
        environment = {"SIMPLETUNER_WORKER_TOKEN": created["token"]}
        if gpus is not None:
            environment["SIMPLETUNER_GPU_INVENTORY"] = json.dumps(gpus)
        return Worker(self, created, self.folder / f"work-{created['name']}", environment)

    def start_worker(
        self,
        name: str,
        *more: str,
        persistent: bool = True,
        gpus: list[Json] | None = A100,
        url: str | None = None,
        becomes: str | None = "idle",
        **options: Any,
    ) -> Worker:
        created = self.post("/api/admin/workers", {"name": name, **options})
        worker = self.worker_of(created, gpus)
        words = ["--orchestrator-url", url or self.url, "--name", name, "--work-dir", str(worker.work_dir)]
        worker.start(*words, *(["--persistent"] if persistent else []), *more)
        return worker.becomes(becomes) if becomes else worker

    # Jobs

    def gate(self) -> Path:
        self._gates += 1
        return self.folder / f"gate-{self._gates}"

    def ticking(self, gate: Path) -> Json:
        """A bundle whose trainer runs until the gate is there."""
        return self.command(sys.executable, "-I", "-S", str(TRAINER), str(self.journal.path), str(gate))

    @staticmethod
    def command(*argv: str, **bundle: Any) -> Json:
        return {"trainer": "command", "settings": {"command": list(argv)}, **bundle}

    def submit(self, config: Json | str, **options: Any) -> str:
        return str(self.submitted(config, **options)["job_id"])

    def submitted(self, config: Json | str, **options: Any) -> Json:
        chosen = {"config_name": config} if isinstance(config, str) else {"config": config}
        return self.post("/api/queue/submit", {"target": "worker", **chosen, **options})

    def job(self, job_id: str) -> Json:
        return self.get(f"/api/jobs/{job_id}")

    def attempts(self, job_id: str) -> list[Json]:
        return list(self.get(f"/api/jobs/{job_id}/attempts")["attempts"])

    def events(self, job_id: str) -> list[str]:
        return [event["event_type"] for event in self.get(f"/api/jobs/{job_id}/events")["events"]]

    def explain(self, job_id: str) -> Json:
        return self.get(f"/api/jobs/{job_id}/explain")

    def becomes(self, job_id: str, status: str, within_s: float = PATIENCE_S) -> Json:
        def look() -> Json | None:
            job = self.job(job_id)
            if job["status"] in TERMINAL and status not in TERMINAL:
                raise AssertionError(f"{job_id} ended: {job}")
            return job if job["status"] == status else None

        job_then = wait_until(look, f"{job_id} becomes {status}", within_s)
        assert job_then
        return job_then

    def runs(self, job_id: str, times: int = 1, within_s: float = PATIENCE_S) -> int:
        """Waits for this many starts of its trainer and a tick of the last; gives the trainer's pid."""
        wait_until(
            lambda: len(self.journal.runs(job_id)) >= times and self.journal.runs(job_id)[-1].ticks,
            f"{job_id} runs for the {times}. time",
            within_s,
        )
        return self.journal.runs(job_id)[-1].pid

    def goes_on(self, job_id: str) -> None:
        """The newest trainer of the job ticks now."""
        before = self.journal.runs(job_id)[-1]
        wait_until(
            lambda: self.journal.runs(job_id)[-1].ticks > before.ticks + 1, f"{job_id} goes on ticking"
        )
        assert self.journal.runs(job_id)[-1].pid == before.pid

    def shim_of(self, job_id: str) -> int:
        return shim_of(self.journal.runs(job_id)[-1].pid)

    # Calls

    @property
    def admin_token(self) -> str:
        return (self.home / "admin_token").read_text().strip()

    def call(self, method: str, path: str, body: Json | None = None, **headers: str) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self.admin_token}", **headers}
        return self.client.request(method, self.url + path, json=body, headers=headers)

    def get(self, path: str) -> Json:
        return self._good(self.call("GET", path))

    def post(self, path: str, body: Json | None = None) -> Json:
        return self._good(self.call("POST", path, body))

    def put(self, path: str, body: Json) -> Json:
        return self._good(self.call("PUT", path, body))

    @staticmethod
    def _good(answer: httpx2.Response) -> Json:
        assert answer.is_success, f"{answer.request.method} {answer.url}: {answer.status_code} {answer.text}"
        return dict(answer.json())

    # The end

    def close(self) -> None:
        self.client.close()
        for program in self.programs:
            if program.alive:
                program.kill()
        end_everything_under(self.folder)

    def outputs(self) -> Iterator[tuple[str, str]]:
        for program in self.programs:
            exit_code = program.process.poll()
            ending = "alive" if exit_code is None else f"exit {exit_code}"
            yield f"{program.name} ({ending})", program.text[-8000:]


@contextmanager
def watching(look: Callable[[], Any], every_s: float = 0.05) -> Iterator[list[Any]]:
    """Collects what `look` sees, in a thread, for as long as the block runs."""
    seen: list[Any] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(every_s):
            seen.append(look())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
