"""A worker says that its machine is about to be taken away: what people see, who gets its job, and what it is charged."""

from typing import Any

from msgspec.structs import replace

from tests.http.api_kit import Agent, Running, orchestrator

NOTICE = {"source": "aws", "in_s": 110.0}


async def seen(running: Running, agent: Agent) -> dict[str, Any]:
    return dict(await running.get(f"/api/admin/workers/{agent.id}"))


async def spot(running: Running, agent: Agent) -> None:
    """As one that a pool has hired where machines are taken away at any time."""

    def step(transaction: Any) -> None:
        transaction.save_worker(replace(transaction.worker(agent.id), spot=True))

    await running.fleet.act(step)


async def test_a_machine_that_ends_takes_no_job_and_says_why_and_its_job_goes_on_elsewhere() -> None:
    async with orchestrator() as running:
        first = await running.worker("first")
        job_id = (await running.submit())["job_id"]
        offer = await first.take()
        await first.report(offer, "running")
        for _ in range(2):
            await first.heartbeat(offer, status="leaving", notice=NOTICE)
        shown = await seen(running, first)
        assert (shown["status"], shown["admin_state"]) == ("draining", "active")
        assert shown["interrupted_by"] == "aws"
        assert shown["ends_at"] is not None
        entries = (await running.get("/api/audit", event_type="worker.interrupted"))["entries"]
        assert [one["details"] for one in entries] == [{"source": "aws", "in_s": "110"}]

        waits = (await running.submit())["job_id"]
        explained = await running.get(f"/api/jobs/{waits}/explain")
        assert explained["code"] == "ALL_MATCHING_INTERRUPTED"
        assert explained["workers"][0]["fails"] == ["interrupted"]

        await first.report(offer, "released", reason="interrupted", error="its machine is being taken away")
        job = await running.job(job_id)
        assert (job["status"], job["interruptions"], job["losses"]) == ("queued", 1, 0)
        second = await running.worker("second")
        assert (await second.take())["job_id"] == job_id, "it has kept its place"


async def test_an_offer_under_way_to_a_machine_that_ends_is_taken_back_at_once() -> None:
    async with orchestrator() as running:
        first, job_id = await running.worker("first"), (await running.submit())["job_id"]
        await first.offer()
        await first.heartbeat(status="leaving", notice=NOTICE)
        assert (await running.job(job_id))["status"] == "queued"


async def test_the_next_start_of_a_worker_has_no_end_before_it() -> None:
    async with orchestrator() as running:
        worker = await running.worker()
        await worker.heartbeat(status="leaving", notice=NOTICE)
        await worker.register()
        assert (await seen(running, worker))["interrupted_by"] == "aws", "it is the same process"
        worker.incarnation = "i-2"
        await worker.register()
        await worker.open_stream()
        assert (await seen(running, worker))["interrupted_by"] is None
        job_id = (await running.submit())["job_id"]
        assert (await worker.take())["job_id"] == job_id


async def test_a_spot_machine_that_falls_silent_costs_its_job_nothing_and_any_other_does() -> None:
    async with orchestrator() as running:
        for name, hired, losses in (("spot", True, 0), ("own", False, 1)):
            worker = await running.worker(name)
            if hired:
                await spot(running, worker)
            job_id = (await running.submit())["job_id"]
            offer = await worker.take()
            await worker.report(offer, "running")
            await worker.close_stream()
            await running.pass_time(300.0)
            job = await running.job(job_id)
            assert (job["losses"], job["interruptions"]) == (losses, 1 - losses), name
            await running.post(f"/api/jobs/{job_id}/cancel")


async def test_what_a_hostile_worker_says_of_its_end_is_bounded() -> None:
    async with orchestrator() as running:
        worker = await running.worker()
        await worker.heartbeat(notice={"source": "x" * 3000, "in_s": 1e9})
        shown = await seen(running, worker)
        assert shown["interrupted_by"] == "x" * 32
        await worker.heartbeat(notice={"source": "aws", "in_s": 1e300}, expect=422)
