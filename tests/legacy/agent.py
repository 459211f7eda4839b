"""The agent that fleets in the field run today, as the contract describes it: its words, its order, its oddities.

It reports without an epoch, accepts nothing explicitly, reads only `data: ` lines, is deaf to jobs while it still waits
for the answer to its final report, says nothing at all while its trainer prints nothing, reports its end twice,
leaves on 401, and otherwise registers again after a pause.
"""

import asyncio
import json
from typing import Any

import httpx2

from tests.http.api_kit import UNUSED_TLS


class LegacyAgent:
    def __init__(self, url: str, token: str, *, persistent: bool = True, pause_s: float = 0.05) -> None:
        self.persistent = persistent
        self.pause_s = pause_s
        self.current_job: str | None = None
        self.worker_id = ""
        self.jobs: list[dict[str, Any]] = []
        """Every job it took up, as it was sent."""
        self.ignored: list[str] = []
        self.answers: list[tuple[str, int]] = []
        self.resumed: list[str] = []
        self.abandoned: list[str] = []
        self.connections = 0
        self.left: str | None = None
        self.final_answer_held = asyncio.Event()
        self.final_answer_held.set()
        self._trainer: asyncio.Future[str] | None = None
        self._follow: asyncio.Task[None] | None = None
        self._http = httpx2.AsyncClient(
            base_url=url, headers={"X-Worker-Token": token}, trust_env=False, verify=UNUSED_TLS
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        for task in (self._task, self._follow):
            if task:
                task.cancel()
                await asyncio.wait((task,))
        await self._http.aclose()

    def trainer_ends(self, how: str = "completed") -> None:
        assert self._trainer
        self._trainer.set_result(how)

    async def heartbeat(self) -> Any:
        status = "busy" if self.current_job else "idle"
        body = {"worker_id": self.worker_id, "status": status, "current_job_id": self.current_job}
        answer = await self._http.post("/api/workers/heartbeat", json=body)
        return answer.json()

    async def has_jobs(self) -> bool:
        answer = await self._http.get(f"/api/workers/queue?worker_id={self.worker_id}")
        return bool(answer.json()["has_jobs"])

    async def goodbye(self) -> None:
        await self._http.post("/api/workers/disconnect", json={"worker_id": self.worker_id})

    async def _run(self) -> None:
        while self.left is None:
            try:
                if not await self._register():
                    return
                await self._listen()
            except httpx2.TransportError:
                pass
            await asyncio.sleep(self.pause_s)

    async def _register(self) -> bool:
        body = {
            "name": "old-timer",
            "gpu_info": {
                "name": "NVIDIA GeForce RTX 4090",
                "vram_gb": 24,
                "count": 1,
                "driver": "550.54",
                "accelerator": "cuda",
            },
            "persistent": self.persistent,
            "current_job_id": self.current_job,
        }
        answer = await self._http.post("/api/workers/register", json=body)
        if answer.status_code == 401:
            self.left = "401"
            return False
        registered = answer.json()
        self.worker_id = registered["worker_id"]
        if registered["resume_job"]:
            self.resumed.append(registered["resume_job"]["job_id"])
        if registered["abandon_job"]:
            self.abandoned.append(registered["abandon_job"])
        return True

    async def _listen(self) -> None:
        path = f"/api/workers/stream?worker_id={self.worker_id}"
        async with self._http.stream("GET", path, timeout=None) as answer:
            if answer.status_code == 401:
                self.left = "401"
                return
            self.connections += 1
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    self._take(json.loads(line.removeprefix("data: ")))
                if self.left:
                    return

    def _take(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "job_submit":
                self._begin(event)
            case "job_cancel":
                if self._trainer and not self._trainer.done():
                    self._trainer.set_result("cancelled")
            case "shutdown":
                self.left = "shutdown"

    def _begin(self, event: dict[str, Any]) -> None:
        if self.current_job is not None:
            self.ignored.append(event["job_id"])
            return
        assert isinstance(event["config"], dict)
        assert isinstance(event["upload_endpoint"], str)
        assert isinstance(event.get("upload_token", ""), str)
        self.current_job = event["job_id"]
        self.jobs.append(event)
        self._trainer = asyncio.get_running_loop().create_future()
        self._follow = asyncio.create_task(self._run_job(event["job_id"], self._trainer))

    async def _run_job(self, job_id: str, trainer: "asyncio.Future[str]") -> None:
        await self._report(job_id, "starting")
        await self._report(job_id, "training")
        how = await trainer
        await self._report(job_id, how)
        await self._report(job_id, "completed" if how == "cancelled" else how)
        await self.final_answer_held.wait()
        self.current_job = None
        if not self.persistent and not await self.has_jobs():
            await self.goodbye()
            self.left = "done"

    async def _report(self, job_id: str, status: str) -> None:
        """One try; what goes wrong is swallowed."""
        body = {"status": status, "progress": {"step": 1}} if status == "training" else {"status": status}
        try:
            answer = await self._http.post(f"/api/workers/job/{job_id}/status", json=body)
            self.answers.append((status, answer.status_code))
        except httpx2.TransportError:
            self.answers.append((status, 0))
