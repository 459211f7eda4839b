"""Quotas over a real store: checked in the transaction that admits or places, told to whom they concern."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from devtools.fuzz.in_process_server import Headers, InProcessServer
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.ports import JobFilter


@asynccontextmanager
async def a_server(folder: Path) -> AsyncIterator[tuple[InProcessServer, Headers, Headers]]:
    server = await InProcessServer(folder / "server", 1, Policy()).open()
    try:
        yield server, await server.user("ann", "member"), await server.user("bob", "member")
    finally:
        await server.close()


async def running(server: InProcessServer) -> int:
    return len(await server.store.read(lambda view: view.live_attempts()))


async def test_jobs_wait_for_a_quota_and_are_told_which_whose_and_until_when(tmp_path: Path) -> None:
    async with a_server(tmp_path) as (server, ann, bob):
        await server.good("POST", "/api/teams", {"name": "lab"})
        await server.good("PUT", "/api/teams/lab/members/ann", {"role": "member"})
        ann = await server.log_in("ann")
        made = {"kind": "running_jobs", "scope": "team", "subject": "lab", "ceiling": 1}
        quota = await server.good("POST", "/api/quotas", made)
        workers = [await server.worker(f"gpu{at}") for at in range(3)]
        first = await server.submit(ann, "gpu0")
        offer = await workers[0].offer_of(first)
        await workers[0].accept(offer)
        held = await server.submit(ann, "gpu1")
        free = await server.submit(bob, "gpu2")
        assert await running(server) == 2
        explained = await server.good("GET", f"/api/jobs/{held}/explain", None, ann)
        assert explained["code"] == "QUOTA"
        assert explained["params"]["quota"] == quota["id"]
        assert explained["params"]["whose"] == "team lab"
        assert "until a job of it ends" in explained["sentence"]
        mine = (await server.good("GET", "/api/quotas/me", None, ann))["quotas"]
        assert [(one["whose"], one["used"], one["left"]) for one in mine] == [("team lab", 1, 0)]
        assert (await server.good("GET", "/api/quotas/me", None, bob))["quotas"] == []
        assert (await server.ask("GET", "/api/quotas", None, bob)).status == 403

        await workers[0].report(offer, "completed", exit_code=0)
        states = {
            job: (await server.good("GET", f"/api/jobs/{job}"))["status"] for job in (first, held, free)
        }
        assert states == {first: "completed", held: "dispatched", free: "dispatched"}
        again = await server.submit(ann, "gpu0")
        assert (await server.good("GET", f"/api/jobs/{again}"))["status"] == "queued"
        await server.good("PATCH", f"/api/quotas/{quota['id']}", {"ceiling": 5})
        assert (await server.good("GET", f"/api/jobs/{again}"))["status"] == "dispatched", "at once"
        entries = (await server.good("GET", "/api/audit?event_type=quota.set"))["entries"]
        assert [entry["details"]["ceiling"] for entry in entries] == [5, 1]


async def test_many_submissions_at_once_never_pass_a_ceiling(tmp_path: Path) -> None:
    async with a_server(tmp_path) as (server, ann, bob):
        refuse = {"kind": "running_jobs", "scope": "all", "ceiling": 7, "action": "refuse"}
        quota = await server.good("POST", "/api/quotas", refuse)
        body = {"config": {"trainer": "command", "settings": {"command": ["true"]}}, "target": "worker"}
        answers = await asyncio.gather(
            *(server.ask("POST", "/api/queue/submit", body, (ann, bob)[at % 2]) for at in range(60))
        )
        assert sorted(answer.status for answer in answers) == [200] * 7 + [409] * 53
        refused = next(json.loads(answer.body) for answer in answers if answer.status == 409)
        assert (refused["code"], refused["quota"], refused["whose"]) == ("quota_reached", quota["id"], "all")
        stored = await server.store.read(lambda view: view.jobs_page(JobFilter(), None, 99))
        assert len(stored) == 7
        warned = [json.loads(answer.body)["quotas"] for answer in answers if answer.status == 200]
        assert sum(bool(quotas) for quotas in warned) >= 1, "whoever came near the ceiling was told"

        await server.good("DELETE", f"/api/quotas/{quota['id']}")
        approve = {"kind": "running_jobs", "scope": "each", "ceiling": 0, "action": "approve"}
        await server.good("POST", "/api/quotas", approve)
        blocked = json.loads((await server.ask("POST", "/api/queue/submit", body, ann)).body)
        assert blocked["status"] == JobState.BLOCKED
        assert (await server.good("POST", f"/api/queue/{blocked['job_id']}/approve"))["status"] == "queued"
