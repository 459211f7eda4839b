"""Several orchestrators of real processes on one PostgreSQL."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from devtools.ports import free_port
from tests.e2e.kit import Json, World
from tests.e2e.processes import PATIENCE_S, Program, wait_until

PATIENT = {"SIMPLETUNER_HEARTBEAT_INTERVAL": "0.5", "SIMPLETUNER_HEARTBEAT_TIMEOUT": "20"}
"""A change of leader takes seconds on a crowded machine, and no lease of a trainer should end by it."""


class Orchestrator:
    """One of them: its folder and port stay when its program is started again."""

    def __init__(self, fleet: "Several", name: str, home: Path) -> None:
        self._fleet = fleet
        self.name = name
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.program: Program | None = None

    def launch(self, *words: str, **settings: str) -> Program:
        world, fleet = self._fleet.world, self._fleet
        self.program = world.start(
            self.name,
            *("server", "--no-local", "--port", str(self.port), *words),
            SIMPLETUNER_HOME=str(self.home),
            **{
                "SIMPLETUNER_DATABASE_URL": fleet.database_url,
                "SIMPLETUNER_STORAGE_URL": f"file://{fleet.storage}",
                **world.settings,
                **settings,
            },
        )
        return self.program

    def start(self, **settings: str) -> "Orchestrator":
        self.launch(**settings)
        self.await_ready()
        return self

    @property
    def running(self) -> Program:
        assert self.program is not None
        return self.program

    def await_ready(self, within_s: float = PATIENCE_S) -> None:
        program = self.running
        wait_until(lambda: not program.alive or self.role, f"{self.name} is ready", within_s)
        assert program.alive, f"{self.name} did not start:\n{program.text}"

    @property
    def role(self) -> str:
        """`leader`, `follower`, or nothing while it is neither."""
        try:
            answer = self._fleet.world.client.get(f"{self.url}/health/ready", timeout=5)
        except httpx2.TransportError:
            return ""
        return str(answer.json()["role"]) if answer.status_code == 200 else ""

    def becomes(self, role: str, within_s: float = PATIENCE_S) -> None:
        wait_until(lambda: self.role == role, f"{self.name} becomes {role}", within_s)

    def call(
        self, method: str, path: str, body: Json | None = None, more: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        headers = {"authorization": f"Bearer {self._fleet.world.admin_token}", **(more or {})}
        return self._fleet.world.client.request(method, self.url + path, json=body, headers=headers)

    def stop(self) -> None:
        self.running.process.terminate()
        self.running.wait()


class Several:
    def __init__(self, world: World, database_url: str) -> None:
        self.world = world
        self.database_url = database_url
        self.storage = world.folder / "shared-storage"
        self.all: list[Orchestrator] = []
        world.settings.update(PATIENT)

    def add(self, *, with_key: bool = True) -> Orchestrator:
        """Its folder is new, but for the key that all of them are given."""
        home = self.world.folder / f"orchestrator-{len(self.all)}"
        orchestrator = Orchestrator(self, f"orchestrator {len(self.all)}", home)
        if self.all and with_key:
            self.give_key(orchestrator)
        if not self.all:
            self.world.home = home
        self.all.append(orchestrator)
        return orchestrator

    def give_key(self, orchestrator: Orchestrator) -> None:
        orchestrator.home.mkdir(mode=0o700)
        shutil.copy(self.all[0].home / "secrets.key", orchestrator.home / "secrets.key")

    def pair(self) -> tuple[Orchestrator, Orchestrator]:
        """Returns one that leads and one that follows; the world looks on through the follower."""
        leader, follower = self.add().start(), self.add().start()
        leader.becomes("leader")
        follower.becomes("follower")
        self.world.url = follower.url
        return leader, follower

    def both_urls(self) -> str:
        return ",".join(each.url for each in self.all)

    def accepted_submit(self, config: Json, at: Orchestrator, within_s: float = PATIENCE_S) -> str:
        """Submits again and again, as a client does, until it is accepted."""

        def submit() -> Any:
            body = {"target": "worker", "config": config}
            try:
                answer = at.call("POST", "/api/queue/submit", body, {"idempotency-key": "the-same"})
            except httpx2.TransportError:
                return None
            assert answer.is_success or answer.status_code == 503, answer.text
            return answer.json()["job_id"] if answer.is_success else None

        return str(wait_until(submit, "a submit is accepted", within_s))


class RunningJob:
    """A job whose trainer ticks, on a worker that knows all orchestrators unless told otherwise."""

    def __init__(self, several: Several, url: str | None = None) -> None:
        self.world = several.world
        self.worker = self.world.start_worker("steady", url=url or several.both_urls())
        self.gate = self.world.gate()
        self.id = self.world.submit(self.world.ticking(self.gate))
        self.trainer = self.world.runs(self.id)

    def ends_undisturbed(self) -> None:
        self.world.goes_on(self.id)
        self.gate.write_text("0")
        job = self.world.becomes(self.id, "completed")
        assert (job["attempt"], job["losses"]) == (1, 0)
        assert [run.pid for run in self.world.journal.assert_one_at_a_time(self.id)] == [self.trainer]


def term_at(orchestrator: Orchestrator) -> int:
    return int(orchestrator.call("GET", "/api/jobs").headers["x-fleet-term"])
