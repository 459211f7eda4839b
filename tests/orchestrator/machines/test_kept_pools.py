"""A pool that is kept for some: others' jobs bring none of its machines, run on none, and are not told how it is called."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simpletuner_fleet.core.workers.audience import Audience
from simpletuner_fleet.orchestrator.machines.provisioner import Provisioner
from simpletuner_fleet.storage.ownership import FLEET_ID
from tests.http.api_kit import Agent, Running, orchestrator, read_events
from tests.orchestrator.machines.test_machines_api import HOME, POOL, Rounds, join

JOB = {
    "config": {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 1}},
    "target": "worker",
}
MAY = ("queue.submit", "queue.submit.command", "jobs.read", "machines.read")


class Somebody:
    def __init__(self, id: str, http: httpx2.AsyncClient) -> None:
        self.id = id
        self.http = http

    async def submits(self, **more: Any) -> dict[str, Any]:
        answer = await self.http.post("/api/queue/submit", json={**JOB, **more})
        assert answer.status_code in (200, 201, 202), answer.text
        return dict(answer.json())

    async def sees(self, path: str) -> Any:
        return (await self.http.get(path)).json()


class Kept:
    """The pool is for the insider alone."""

    def __init__(self, running: Running, insider: Somebody, outsider: Somebody) -> None:
        self.running = running
        self.rounds = Rounds(running)
        self.insider, self.outsider = insider, outsider

    async def save(self, **request: Any) -> dict[str, Any]:
        answer = await self.running.http.put("/api/pools/shelf", json={**POOL, **request})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def worker(self) -> Agent:
        await self.rounds.once()
        joined = (await join(self.running, self.rounds.token))[1]
        agent = Agent(self.running, joined)
        await agent.register(gpus=1, home=HOME)
        await agent.open_stream()
        return agent


async def somebody(running: Running, name: str, open_clients: AsyncExitStack) -> Somebody:
    made = await running.post("/api/admin/tokens", {"name": name, "permissions": list(MAY)})
    http = await open_clients.enter_async_context(running.as_user(made["token"]))
    return Somebody(made["id"], http)


@pytest.fixture
async def kept() -> AsyncIterator[Kept]:
    async with orchestrator() as running, AsyncExitStack() as open_clients:
        running.deps.provisioner = Provisioner(running.fleet, Path("/nonexistent"), {}, {})
        await running.fleet.act(lambda transaction: transaction.tx.put_setting(FLEET_ID, "f_1"))
        running.clock.at += 1000.0
        insider, outsider = [await somebody(running, name, open_clients) for name in ("ada", "bob")]
        pool = Kept(running, insider, outsider)
        await pool.save(people=[insider.id])
        yield pool
        await running.deps.provisioner.stop()


async def test_a_strangers_job_brings_no_machine_and_runs_on_none(kept: Kept) -> None:
    stranger = (await kept.outsider.submits())["job_id"]
    await kept.rounds.once()
    assert kept.rounds.shelf.orders == []
    job_id = (await kept.insider.submits())["job_id"]
    agent = await kept.worker()
    assert (await agent.events.next("job_submit"))["job_id"] == job_id
    explained = await kept.outsider.sees(f"/api/jobs/{stranger}/explain")
    assert explained["code"] == "KEPT_FOR_OTHERS"
    assert [one["fails"] for one in explained["workers"]] == [["kept_for_others"]]
    await kept.rounds.once()
    assert len(kept.rounds.shelf.orders) == 1


async def test_whoever_may_not_use_it_is_told_so_without_its_name(kept: Kept) -> None:
    dry = await kept.outsider.submits(dry_run=True)
    assert dry["explain"]["code"] == "KEPT_FOR_OTHERS"
    refused = await kept.outsider.http.post("/api/queue/submit", json={**JOB, "no_wait": True})
    assert refused.json()["reason"] == "KEPT_FOR_OTHERS"
    job_id = (await kept.outsider.submits())["job_id"]
    explained = await kept.outsider.sees(f"/api/jobs/{job_id}/explain")
    assert "shelf" not in str((dry, refused.text, explained))
    assert (await kept.outsider.sees("/api/pools"))["pools"] == []
    assert (await kept.outsider.http.get("/api/pools/shelf")).status_code == 404
    assert [one["name"] for one in (await kept.insider.sees("/api/pools"))["pools"]] == ["shelf"]
    assert (await kept.insider.submits(dry_run=True))["explain"]["code"] == "NO_WORKERS"


async def test_its_machines_and_its_news_are_hidden_with_it(kept: Kept) -> None:
    streams = [await read_events(one.http, "/api/events") for one in (kept.outsider, kept.insider)]
    await kept.insider.submits()
    await kept.rounds.once()
    (machine,) = (await kept.insider.sees("/api/machines"))["machines"]
    assert (await kept.outsider.sees("/api/machines"))["machines"] == []
    assert (await kept.outsider.http.get(f"/api/machines/{machine['id']}")).status_code == 404
    await kept.save(people=[kept.insider.id], max_machines=3)
    assert (await streams[1].events.next("pool")) == {"type": "pool", "id": "shelf"}
    await kept.save()
    assert (await streams[0].events.next("pool"))["id"] == "shelf", "the first news is that it is everybody's"
    for stream in streams:
        await stream.close()


async def test_a_change_holds_for_machines_that_are_there(kept: Kept) -> None:
    job_id = (await kept.insider.submits())["job_id"]
    agent = await kept.worker()
    stranger = (await kept.outsider.submits())["job_id"]
    offer = await agent.events.next("job_submit")
    team = await kept.running.post("/api/teams", {"name": "Vision"})
    saved = await kept.save(teams=["Vision"])
    assert (saved["teams"], saved["people"], saved["request"]["teams"]) == (["Vision"], [], [team["id"]])
    worker = await kept.running.fleet.read(lambda view: view.worker(agent.id))
    assert worker is not None
    assert worker.audience == Audience(teams=(team["id"],))
    assert (await kept.running.job(job_id))["status"] == "dispatched", "what is there goes on"
    await agent.accept(offer)
    await agent.report(offer, "completed")
    assert (await kept.running.job(stranger))["status"] == "queued"
    await kept.save()
    assert (await agent.events.next("job_submit"))["job_id"] == stranger
    entries = (await kept.running.get("/api/audit"))["entries"]
    named = [one["details"].get("teams") for one in entries if one["event_type"] == "pool.saved"]
    assert named == [None, ["Vision"], None]


@pytest.mark.parametrize(("field", "said"), [("teams", "no team 'x'"), ("people", "no user 'x'")])
async def test_nobody_is_named_who_is_not_there(kept: Kept, field: str, said: str) -> None:
    answer = await kept.running.http.put("/api/pools/p", json={**POOL, field: ["x"]})
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, f"$.{field}")
    assert said in answer.json()["detail"]
