"""Jobs an hour that wait, and what storage does at its ceiling for everybody whom it concerns, over a real store."""

import json
from collections.abc import AsyncIterator
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from devtools.fuzz.in_process_server import CPU_JOB, Headers, InProcessServer, InProcessWorker, Refused
from simpletuner_fleet.core.placement.usage import UseLedger
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.memory.counting import book_of
from simpletuner_fleet.orchestrator.organising.quota_watch import watch_quotas
from simpletuner_fleet.orchestrator.sweep import sweep_once

HOUR_S = 3600.0
SUBJECTS = {"person": "ann", "team": "lab", "role": "member", "each": "", "all": ""}


class Lab(Struct):
    server: InProcessServer
    ann: Headers
    bob: Headers
    worker: InProcessWorker

    async def quota(self, kind: str, scope: str, action: str, ceiling: float) -> str:
        body = {"kind": kind, "scope": scope, "action": action, "ceiling": ceiling}
        made = await self.server.good("POST", "/api/quotas", {**body, "subject": SUBJECTS[scope]})
        return str(made["id"])

    async def status(self, job_id: str) -> str:
        return str((await self.server.good("GET", f"/api/jobs/{job_id}"))["status"])

    async def submitted(self, by: Headers) -> Any:
        body = {"config": CPU_JOB, "target": "worker", "worker_labels": {"only": "gpu"}}
        answer = await self.server.ask("POST", "/api/queue/submit", body, by)
        return json.loads(answer.body)

    async def stores(self, job_id: str, content: bytes) -> None:
        """Raises Refused where it is too much."""
        await self.worker.upload(await self.worker.offer_of(job_id), content)


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    server = await InProcessServer(tmp_path / "server", 1, Policy()).open()
    await server.user("ann", "member")
    bob = await server.user("bob", "viewer")
    await server.good("POST", "/api/teams", {"name": "lab"})
    await server.good("PUT", "/api/teams/lab/members/ann", {"role": "member"})
    yield Lab(server, await server.log_in("ann"), bob, await server.worker("gpu"))
    await server.close()


async def test_jobs_beyond_those_of_an_hour_wait_are_told_until_when_and_go_on_by_the_clock(lab: Lab) -> None:
    server, clock = lab.server, lab.server.clock
    quota = await lab.quota("jobs_per_hour", "team", "wait", 2)
    first, second, third = [await server.submit(lab.ann, "gpu") for _ in range(3)]
    assert [await lab.status(one) for one in (first, second, third)] == ["dispatched", "dispatched", "queued"]
    assert await lab.status(await server.submit(server.admin, "gpu")) == "dispatched", (
        "another's is not counted"
    )
    explained = await server.good("GET", f"/api/jobs/{third}/explain", None, lab.ann)
    assert explained["code"] == "QUOTA"
    params = explained["params"]
    assert (params["quota"], params["whose"], params["kind"]) == (quota, "team lab", "jobs_per_hour")
    assert params["frees_at"] == clock.at + HOUR_S
    assert params["frees"] in explained["sentence"]
    [mine] = (await server.good("GET", "/api/quotas/me", None, lab.ann))["quotas"]
    assert (mine["used"], mine["left"], mine["action"]) == (2, 0, "wait")

    offer = await lab.worker.offer_of(first)
    await lab.worker.accept(offer)
    await lab.worker.report(offer, "completed", exit_code=0)
    assert await lab.status(third) == "queued", "an end frees nothing of what has started"
    organisation, fresh = server.fleet.organisation, UseLedger()
    book = await server.store.read(lambda view: book_of(view, organisation, fresh, clock.at))
    assert book
    assert book.standing(book.quotas[0], "all", clock.at).used == 3, "a new leader counts the same"

    clock.at += HOUR_S - 1
    await sweep_once(server.fleet)
    assert await lab.status(third) == "queued"
    clock.at += 1
    assert server.fleet.clock_frees_something()
    await sweep_once(server.fleet)
    assert await lab.status(third) == "dispatched"
    assert not server.fleet.clock_frees_something()


async def test_what_the_clock_frees_is_not_forgotten_where_the_next_act_fails(lab: Lab) -> None:
    await lab.quota("jobs_per_hour", "all", "wait", 1)
    await lab.server.submit(lab.ann, "gpu")
    waits = await lab.server.submit(lab.ann, "gpu")
    lab.server.clock.at += HOUR_S
    with pytest.raises(Refused):
        await lab.server.good("PATCH", "/api/quotas/q_nothing", {"ceiling": 5})
    await lab.server.config("concerns-no-job", lab.ann)
    assert await lab.status(waits) == "dispatched"


async def test_what_the_clock_frees_is_not_forgotten_where_somebody_looks_first(lab: Lab) -> None:
    server = lab.server
    await lab.quota("jobs_per_hour", "all", "wait", 1)
    await server.submit(lab.ann, "gpu")
    waits = await server.submit(lab.ann, "gpu")
    server.clock.at += HOUR_S
    [seen] = (await server.good("GET", "/api/quotas/me", None, lab.ann))["quotas"]
    assert (seen["used"], seen["left"], seen["frees_at"]) == (0, 1, None)
    await sweep_once(server.fleet)
    assert await lab.status(waits) == "dispatched"


async def test_storage_at_its_ceiling_warns_refuses_or_asks_for_an_approval_in_every_scope(lab: Lab) -> None:
    server, numbers = lab.server, count()

    def content() -> bytes:
        return b"%08d" % next(numbers) * 100

    first = await server.submit(lab.ann, "gpu")
    await lab.stores(first, content())
    for scope, action in product(SUBJECTS, ("warn", "refuse", "approve")):
        used = await server.store.read(lambda view: view.stored_bytes_of_jobs())
        quota = await lab.quota("stored_bytes", scope, action, used)
        said = (scope, action)
        mine = {
            one["id"]: one for one in (await server.good("GET", "/api/quotas/me", None, lab.ann))["quotas"]
        }
        assert (mine[quota]["used"], mine[quota]["left"]) == (used, 0), said
        job = await lab.submitted(lab.ann)
        assert [one["quota"] for one in job["quotas"]] == [quota], said
        assert job["status"] == ("blocked" if action == "approve" else "dispatched"), said
        if action == "approve":
            await server.good("POST", f"/api/queue/{job['job_id']}/approve")
        if action == "refuse":
            with pytest.raises(Refused, match=quota):
                await lab.stores(job["job_id"], content())
        else:
            await lab.stores(job["job_id"], content())
        await server.good("DELETE", f"/api/quotas/{quota}")


async def test_storage_of_others_concerns_nobody_but_where_it_is_of_all_together(lab: Lab) -> None:
    server = lab.server
    await lab.stores(await server.submit(lab.ann, "gpu"), b"x" * 500)
    await lab.quota("stored_bytes", "each", "refuse", 500)
    await lab.stores(await server.submit(server.admin, "gpu"), b"y" * 500)
    of_all = await lab.quota("stored_bytes", "all", "refuse", 1000)
    with pytest.raises(Refused, match=of_all):
        await lab.stores(
            await server.submit(await server.token("ci", "queue.submit", "queue.submit.command"), "gpu"), b"z"
        )
    shown = (await server.good("GET", "/api/quotas/me", None, lab.bob))["quotas"]
    assert {(one["whose"], one["used"]) for one in shown} == {("each", 0), ("all", 1000)}


async def test_storage_that_fills_up_is_news_once_and_again_after_there_was_room(lab: Lab) -> None:
    server = lab.server
    job = await server.submit(lab.ann, "gpu")
    await lab.quota("stored_bytes", "each", "warn", 1000)
    await lab.quota("stored_bytes", "all", "warn", 100_000)

    async def news() -> list[tuple[str, str]]:
        for _ in range(2):
            server.clock.at += 31
            await lab.worker.offers()
            await watch_quotas(server.fleet)
        entries = (await server.good("GET", "/api/audit?target_type=quota"))["entries"]
        entries = [
            one
            for one in reversed(entries)
            if one["event_type"].startswith("quota.") and "owner" in one["details"]
        ]
        return [(one["event_type"], one["details"]["why"]) for one in entries]

    assert await news() == []
    await lab.stores(job, b"a" * 850)
    assert await news() == [("quota.nearly_used", "850 / 1000")]
    await lab.stores(job, b"b" * 300)
    assert (await news())[1:] == [("quota.reached", "1150 / 1000")]
    held = await server.store.read(lambda view: view.objects_of_job(job))
    await server.store.write(lambda tx: tx.disown_objects([(job, sha256) for sha256 in held]))
    await news()
    await lab.stores(job, b"c" * 900)
    assert (await news())[2:] == [("quota.nearly_used", "900 / 1000")]


async def test_a_combination_that_makes_no_sense_is_refused_with_those_that_do(lab: Lab) -> None:
    answer = await lab.server.ask(
        "POST", "/api/quotas", {"kind": "stored_bytes", "scope": "all", "ceiling": 5}, lab.server.admin
    )
    problem = json.loads(answer.body)
    assert answer.status == 422
    assert problem["detail"] == "At the ceiling of stored_bytes there can be approve, refuse, warn."
