"""Everybody who might call, and jobs in every state that are ann's: made when they are asked for, and again once changed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from devtools.fuzz.in_process_server import Headers, InProcessServer
from devtools.fuzz.job_states import MadeJob, make_job
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.http.edge.routes import Route
from simpletuner_fleet.ports import View
from simpletuner_fleet.storage.logs import log_key
from tests.attacks.matrix.bodies import request_for
from tests.attacks.matrix.rules import HOLDS

NO_MANIFEST = "m_none"


class Scene(Struct):
    """`callers` are headers by name; the jobs are ann's, on the worker `gpu`."""

    server: InProcessServer
    callers: dict[str, Headers]
    jobs: dict[JobState, MadeJob] = {}
    stored: dict[str, list[Any]] = {}
    """What was stored of each job when it was last looked at."""

    async def job(self, state: JobState) -> MadeJob:
        if state not in self.jobs:
            worker = self.server.workers["gpu"]
            self.jobs[state] = await make_job(self.server, state, self.callers["ann, its owner"], worker)
        return self.jobs[state]

    def headers(self, caller: str, job: MadeJob | None) -> Headers:
        if caller == "its own attempt":
            offer = job.offer if job else None
            return {"x-upload-token": str(offer["upload_token"]) if offer else tokens.make("ut", b"n" * 32)}
        return self.callers[caller]

    async def call_for_each_state(self, row: Route, caller: str) -> dict[JobState, tuple[int, bool]]:
        """Asks once about a job in each state; returns the status, and whether anything of that job is another than before.

        All of them are looked at together, when all have been asked about: each is asked about once in between.
        """
        jobs = {state: await self.job(state) for state in JobState}
        new = [job.id for job in jobs.values() if job.id not in self.stored]
        before = {**self.stored, **await self.rows(new)}
        statuses: dict[JobState, int] = {}
        for state, job in jobs.items():
            manifests = before[job.id][2]
            statuses[state] = await self.ask(row, caller, job, manifests[0].id if manifests else NO_MANIFEST)
        self.stored = await self.rows([job.id for job in jobs.values()])
        changed = {state: self.stored[job.id] != before[job.id] for state, job in jobs.items()}
        self.jobs = {state: job for state, job in jobs.items() if not changed[state]}
        return {state: (status, changed[state]) for state, status in statuses.items()}

    async def ask(
        self, row: Route, caller: str, job: MadeJob | None = None, manifest: str = NO_MANIFEST
    ) -> int:
        target, body, more = request_for(row, job, manifest)
        headers = {**more, **self.headers(caller, job)}
        return (await self.server.ask(row.method, target, body, headers)).status

    async def rows(self, job_ids: list[str]) -> dict[str, list[Any]]:
        """All that is stored of each job: its row, its attempts, what it uploaded and where it goes, its logs."""

        def look_at(view: View, job_id: str) -> list[Any]:
            manifests, attempts = view.manifests_of_job(job_id), view.attempts_of_job(job_id)
            return [view.job(job_id), attempts, manifests, view.publication(job_id)]

        rows = await self.server.store.read(lambda view: {one: look_at(view, one) for one in job_ids})
        return {one: [*seen, [self._log(attempt.id) for attempt in seen[1]]] for one, seen in rows.items()}

    def _log(self, attempt_id: str) -> bytes | None:
        file = self.server.folder / "storage" / log_key(attempt_id, 0)
        return file.read_bytes() if file.exists() else None


@asynccontextmanager
async def a_scene(folder: Path) -> AsyncIterator[Scene]:
    server = await InProcessServer(folder / "server", 1, Policy(require_approval=True)).open()
    try:
        ann = await server.user("ann", "member")
        callers = {
            "nobody": {},
            "a stranger": {"authorization": f"Bearer {tokens.make('st', b'z' * 32)}"},
            "an admin": server.admin,
            "ann, its owner": ann,
            "bob, a colleague": await server.user("bob", "member"),
            "vic, who looks on": await server.user("vic", "viewer"),
            **{
                name: await server.token(name, *held)
                for name, held in HOLDS.items()
                if name.startswith("a token")
            },
        }
        for name in ("gpu", "other"):
            worker = await server.worker(name)
            callers[{"gpu": "its worker", "other": "another worker"}[name]] = worker.headers
        other = await make_job(server, JobState.RUNNING, ann, server.workers["other"])
        assert other.offer
        callers["attempt of another job"] = {"x-upload-token": str(other.offer["upload_token"])}
        yield Scene(server, callers)
    finally:
        await server.close()
