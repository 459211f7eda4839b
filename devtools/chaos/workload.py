"""What people do meanwhile: submit, cancel, drain, rotate tokens. Every submit is acknowledged in the end, once."""

import asyncio
import random
import signal
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from devtools.chaos.deeper.restores import boottime
from devtools.chaos.fleet import ChaosFleet, Worker
from devtools.chaos.recorder import Json

TRAINER = Path(__file__).with_name("trainer.py")
BETWEEN_JOBS_S = (0.05, 0.4)
BETWEEN_ACTS_S = (0.3, 2.0)
MOST_AT_ONCE = 24
TERMINAL = ("completed", "failed", "cancelled")
UNKNOWN = 404


class SubmittedJob(Struct):
    key: str
    exit_code: int
    job_id: str = ""
    job_ids: set[str] = set()
    cancel_tried: bool = False
    acknowledged_at: float = 0.0


class RestoreWindow(NamedTuple):
    """What was acknowledged in between, the restored database does not know; by the clock of the journal."""

    backup_at: float
    restored_at: float

    def holds(self, at: float) -> bool:
        return self.backup_at <= at <= self.restored_at


class Workload:
    def __init__(self, fleet: ChaosFleet, seed: int) -> None:
        self.fleet = fleet
        self.jobs: list[SubmittedJob] = []
        self.ended: dict[str, str] = {}
        self.drains = 0
        self.rotations = 0
        self.windows: list[RestoreWindow] = []
        self._rotating = asyncio.Lock()
        fleet.on_restored = self._restored
        self._seed = seed
        self._rng = random.Random(f"{seed}-jobs")
        self._people = random.Random(f"{seed}-people")
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def cancels(self) -> int:
        return sum(job.cancel_tried for job in self.jobs)

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._submit_in_a_loop()),
            asyncio.create_task(self._act_in_a_loop()),
        ]

    async def stop(self) -> None:
        """No new job; what was begun is finished, and every worker takes jobs again."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        for worker in self.fleet.workers:
            await self.fleet.api.call_until_answered("POST", f"/api/admin/workers/{worker.id}/resume")

    def raise_what_failed(self) -> None:
        """Raises what nobody was answered: faults that strike where nobody works any more would show nothing."""
        for task in self._tasks:
            if task.done():
                task.result()

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def all_ended(self) -> bool:
        for job in self.open_jobs():
            answer = await self.fleet.api.call("GET", f"/api/jobs/{job.job_id}")
            if answer.outcome == "ok" and answer.body["status"] in TERMINAL:
                self.ended[job.job_id] = answer.body["status"]
            if answer.status == UNKNOWN and self.may_be_forgotten(job):
                self.ended[job.job_id] = "forgotten"
        return not self.open_jobs()

    def open_jobs(self) -> list[SubmittedJob]:
        return [job for job in self.jobs if job.job_id not in self.ended]

    def may_be_forgotten(self, job: SubmittedJob) -> bool:
        """A restored backup was older than its acknowledgement."""
        return any(window.holds(job.acknowledged_at) for window in self.windows)

    async def _restored(self, backup_at: float, restored_at: float, without_token: Collection[str]) -> None:
        """What people do after a restore: they give new tokens to whom it took the old one, and look at all again."""
        self.windows.append(RestoreWindow(backup_at, restored_at))
        self.ended.clear()
        async with self._rotating:
            for worker in self.fleet.workers:
                await self.fleet.api.call_until_answered("POST", f"/api/admin/workers/{worker.id}/resume")
                if worker.rotated_at >= backup_at or worker.id in without_token:
                    await self._give_token(worker)

    async def _give_token(self, worker: Worker) -> None:
        answer = await self.fleet.api.call_until_answered("POST", f"/api/admin/workers/{worker.id}/token")
        worker.rotated_at = boottime()
        worker.write_token(answer.body["token"])

    async def wait_until_all_ended(self) -> None:
        await self.fleet.wait_until(self.all_ended, "every job has ended")

    async def _submit_in_a_loop(self) -> None:
        while not self._stopping:
            await asyncio.sleep(self._rng.uniform(*BETWEEN_JOBS_S))
            if len(self.open_jobs()) < MOST_AT_ONCE or await self._some_ended():
                await self._submit()

    async def _some_ended(self) -> bool:
        await self.all_ended()
        return len(self.open_jobs()) < MOST_AT_ONCE

    async def _submit(self) -> None:
        rng = self._rng
        job = SubmittedJob(f"chaos-{self._seed}-{len(self.jobs)}", exit_code=3 if rng.random() < 0.12 else 0)
        behaviour = rng.choices(("plain", "forks", "stubborn"), (7, 2, 1))[0]
        command = [sys.executable, "-I", "-S", str(TRAINER), str(self.fleet.journal)]
        command += [f"{rng.uniform(0.05, 2.0):.3f}", str(job.exit_code), behaviour]
        body: Json = {
            "config": {"trainer": "command", "settings": {"command": command}, "resources": {"gpus": 1}},
            "target": "worker",
            "retry_on_failure": rng.random() < 0.3,
            "on_partition": rng.choice(("pause", "stop")),
        }
        answer = await self.fleet.api.call_until_answered("POST", "/api/queue/submit", body, key=job.key)
        assert answer.outcome == "ok", answer
        job.job_id = answer.body["job_id"]
        job.job_ids = {job.job_id}
        job.acknowledged_at = boottime()
        self.jobs.append(job)
        if rng.random() < 0.1:
            await self._submit_again(job, body)

    async def _submit_again(self, job: SubmittedJob, body: Json) -> None:
        again = await self.fleet.api.call_until_answered("POST", "/api/queue/submit", body, key=job.key)
        job_id = again.body.get("job_id", f"refused: {again.status}")
        if self.may_be_forgotten(job):
            job.job_id, job.job_ids, job.acknowledged_at = job_id, set(), boottime()
        job.job_ids.add(job_id)

    async def _act_in_a_loop(self) -> None:
        acts = (self._cancel, self._drain, self._rotate)
        while not self._stopping:
            await asyncio.sleep(self._people.uniform(*BETWEEN_ACTS_S))
            await self._people.choices(acts, (6, 3, 3))[0]()

    async def _cancel(self) -> None:
        if self.jobs:
            job = self._people.choice(self.jobs[-8:])
            job.cancel_tried = True
            await self.fleet.api.call_until_answered("POST", f"/api/queue/{job.job_id}/cancel")

    async def _drain(self) -> None:
        worker = self._people.choice(self.fleet.workers)
        self.drains += 1
        await self.fleet.api.call_until_answered("POST", f"/api/admin/workers/{worker.id}/drain")
        await asyncio.sleep(self._people.uniform(0.1, 1.0))
        await self.fleet.api.call_until_answered("POST", f"/api/admin/workers/{worker.id}/resume")

    async def _rotate(self) -> None:
        worker: Worker = self._people.choice(self.fleet.workers)
        self.rotations += 1
        async with self._rotating:
            answer = await self.fleet.api.call_until_answered("POST", f"/api/admin/workers/{worker.id}/token")
            worker.rotated_at = boottime()
            await asyncio.sleep(self._people.uniform(0.0, 0.5))
            worker.write_token(answer.body["token"])
        if self._people.random() < 0.5 and worker.agent.catches(signal.SIGHUP):
            worker.agent.signal(signal.SIGHUP)
