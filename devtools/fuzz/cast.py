"""Who calls: one of each kind, with what they have, and made anew when nonsense has cost them their credential."""

import hashlib

from devtools.fuzz.chance import Chance
from devtools.fuzz.in_process_server import (
    MODEL,
    PASSWORD,
    Headers,
    InProcessServer,
    InProcessWorker,
    Refused,
)
from devtools.fuzz.job_states import MAKERS, make_job
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.people.scim.resources import GROUP_SCHEMA, USER_SCHEMA

PEOPLE = ("admin", "member", "viewer", "token")
TEAM = "lab"
TOKEN_MAY = (
    "jobs.read",
    "jobs.cancel",
    "jobs.retry",
    "queue.submit",
    "queue.submit.command",
    "queue.read",
    "configs.write",
)


class Cast:
    """A server with people, two workers, jobs in every state, and things that belong to somebody."""

    def __init__(self, server: InProcessServer, chance: Chance) -> None:
        self.server = server
        self.callers: dict[str, Headers] = {}
        self._chance = chance
        self._made = 0

    async def arrive(self) -> "Cast":
        server = self.server
        server.known |= {
            kind: [] for kind in ("job", "epoch", "attempt", "user", "manifest", "token", "session")
        }
        server.known |= {
            "worker": [],
            "config": ["c"],
            "secret": ["hf"],
            "dataset": [],
            "sha256": [hashlib.sha256(MODEL).hexdigest(), hashlib.sha256(b"").hexdigest()],
            "size": [len(MODEL), 0],
            "file": ["model.safetensors"],
            "incarnation": ["i-1"],
            "password": [PASSWORD],
            "name": ["ann", "c", "gpu"],
            "scim_user": [],
            "scim_group": [],
            "scim_type": ["User", "Group", USER_SCHEMA, GROUP_SCHEMA],
        }
        self.callers = {"admin": server.admin, "nobody": {}, "liar": {"authorization": "Bearer st_no"}}
        await self.mend()
        await server.good("PUT", "/api/secrets/hf", {"value": "hf_canary"})
        await server.good("POST", "/api/teams", {"name": TEAM})
        await server.config("c", self.callers["member"])
        server.known["dataset"].append(await server.dataset("pets", self.callers["member"]))
        return self

    async def mend(self) -> None:
        """Makes those anew who are not let in any more, with new jobs in every state for the workers among them."""
        server = self.server
        if (await self._status("/api/whoami", "admin")) != 200:
            await server.open()
        for name, role in (("member", "member"), ("viewer", "viewer")):
            if (await self._status("/api/whoami", name)) != 200:
                self.callers[name] = await server.user(self._new(name), role)
        if (await self._status("/api/whoami", "token")) != 200:
            self.callers["token"] = await server.token(self._new("t"), *TOKEN_MAY)
        for name in ("gpu", "other"):
            if (await self._status("/api/workers/queue", name)) != 200:
                worker = await server.worker(self._new(name))
                self.callers[name] = worker.headers
                server.known["worker"].append(worker.id)
                await self._jobs_for(worker)
        await self._look_around()

    def _new(self, name: str) -> str:
        self._made += 1
        return f"{name}-{self._made}"

    async def _status(self, path: str, caller: str) -> int:
        if caller not in self.callers:
            return 401
        return (await self.server.ask("GET", path, None, self.callers[caller])).status

    async def _jobs_for(self, worker: InProcessWorker) -> None:
        known = self.server.known
        for state in MAKERS:
            owner = self._chance.choice(("admin", "member", "token"))
            try:
                job = await make_job(self.server, state, self.callers[owner], worker)
            except Refused:  # somebody has set a limit to nothing, or drained the worker
                continue
            known["job"].append(job.id)
            if job.offer:
                known["epoch"].append(job.offer["epoch"])
                known["attempt"].append(job.offer["attempt_id"])
            if job.offer and state is JobState.RUNNING:
                self.callers[f"{'own' if worker.name.startswith('gpu') else 'other'} attempt"] = {
                    "x-upload-token": str(job.offer["upload_token"])
                }

    async def _look_around(self) -> None:
        """Learns the ids of what there is, the newest of each kind."""
        known, good = self.server.known, self.server.good
        for kind, path, key in (
            ("token", "/api/admin/tokens", "tokens"),
            ("user", "/api/admin/users", "users"),
            ("worker", "/api/admin/workers", "workers"),
        ):
            rows = (await good("GET", path))[key]
            known[kind] = [row.get("id") or row.get("worker_id") for row in rows][-20:]
        for job_id in known["job"][-4:]:
            answer = await self.server.ask("GET", f"/api/jobs/{job_id}/artifacts", None, self.server.admin)
            if b"manifest_id" in answer.body:
                known["manifest"] = [
                    part.split('"')[0] for part in answer.body.decode().split('manifest_id":"')[1:]
                ]
