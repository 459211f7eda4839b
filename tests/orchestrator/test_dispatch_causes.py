"""A job is placed the moment something makes it placeable; nothing polls."""

from simpletuner_fleet.core.events import ORCHESTRATOR
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.orchestrator.workers import administer
from tests.http.api_kit import CPU_CONFIG, Agent, orchestrator


async def test_a_submission_is_placed_on_an_idle_worker() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        assert (job["status"], job["allocated_worker_id"]) == ("dispatched", agent.id)


async def test_an_opened_stream_gets_what_waited_for_it() -> None:
    async with orchestrator() as running:
        job = await running.submit()
        agent = Agent(running, await running.create_worker())
        await agent.register()
        assert (await running.job(job["job_id"]))["status"] == "queued"
        await agent.open_stream()
        assert (await agent.offer())["job_id"] == job["job_id"]


async def test_new_facts_at_registration_make_a_waiting_job_fit() -> None:
    async with orchestrator() as running:
        agent = await running.worker(gpus=0)
        job = await running.submit(gpus=2)
        assert job["status"] == "queued"
        await agent.register(gpus=2)
        assert (await agent.offer())["job_id"] == job["job_id"]


async def test_a_jobs_end_makes_room_for_the_next() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.submit()
        offer = await agent.take()
        waiting = await running.submit()
        await agent.report(offer, "completed")
        assert (await agent.offer())["job_id"] == waiting["job_id"]


async def test_a_cancelled_offer_makes_room_at_once() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        first = await running.submit()
        second = await running.submit()
        assert second["status"] == "queued"
        await running.post(f"/api/queue/{first['job_id']}/cancel")
        offers = [await agent.offer(), await agent.offer()]
        assert offers[-1]["job_id"] == second["job_id"]


async def test_a_lost_workers_job_goes_to_the_next_worker() -> None:
    async with orchestrator() as running:
        first = await running.worker("first")
        job = await running.submit()
        await first.take()
        second = await running.worker("second")
        await first.close_stream()
        for _ in range(5):
            await running.pass_time(30)
            await second.heartbeat()
        again = await second.offer()
        assert (again["job_id"], again["attempt"]) == (job["job_id"], 2)
        job_now = await running.job(job["job_id"])
        assert (job_now["losses"], job_now["failures"]) == (1, 0)


async def test_a_released_job_goes_to_another_worker_at_once() -> None:
    async with orchestrator() as running:
        first = await running.worker("first")
        job = await running.submit()
        await first.take()
        second = await running.worker("second")
        await first.call("disconnect", {"reason": "spot notice"})
        assert (await second.offer())["job_id"] == job["job_id"]
        assert (await running.job(job["job_id"]))["losses"] == 0


async def test_an_offer_nobody_took_goes_elsewhere_within_fifteen_seconds_and_costs_nothing() -> None:
    async with orchestrator() as running:
        first = await running.worker("first")
        job = await running.submit()
        await first.offer()
        second = await running.worker("second")
        await running.pass_time(running.fleet.policy.offer_timeout_s + 3)
        assert (await second.offer())["job_id"] == job["job_id"]
        job_now = await running.job(job["job_id"])
        assert (job_now["losses"], job_now["failures"]) == (0, 0)


async def test_a_resumed_worker_gets_what_waited() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.post(f"/api/admin/workers/{agent.id}/drain")
        job = await running.submit()
        await running.post(f"/api/admin/workers/{agent.id}/resume")
        assert (await agent.offer())["job_id"] == job["job_id"]


async def test_a_retry_that_is_due_is_placed_by_the_timer() -> None:
    async with orchestrator(policy=Policy(retry_backoff_s=20)) as running:
        agent = await running.worker()
        job = await running.submit(retry_on_failure=True)
        for _ in range(2):
            offer = await agent.take()
            await agent.report(offer, "failed", exit_code=1)
        job_now = await running.job(job["job_id"])
        assert (job_now["status"], job_now["explain"]["code"]) == ("queued", "RETRY_BACKOFF")
        await agent.heartbeat()
        await running.pass_time(21)
        assert (await agent.offer())["attempt"] == 3


async def test_retries_end_and_the_job_fails_with_the_count() -> None:
    async with orchestrator(policy=Policy(retry_backoff_s=0.001)) as running:
        agent = await running.worker()
        job = await running.submit(retry_on_failure=True, max_retries=3)
        for _ in range(4):
            offer = await agent.take()
            await agent.report(offer, "failed", exit_code=1)
            await running.pass_time(3)
        job_now = await running.job(job["job_id"])
        assert (job_now["status"], job_now["reason"], job_now["attempt"]) == (
            "failed",
            "retries_exhausted",
            4,
        )


async def test_a_job_that_fits_is_not_held_up_by_one_that_does_not() -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        big = await running.submit(gpus=8)
        small = await running.submit()
        assert (big["status"], small["status"]) == ("queued", "dispatched")
        assert (await agent.offer())["job_id"] == small["job_id"]


async def test_auto_prefers_a_remote_worker_and_falls_back_to_local() -> None:
    async with orchestrator(local_enabled=True) as running:
        remote = await running.worker("remote")
        worker, token = await administer.local_worker(running.fleet, None, ORCHESTRATOR)
        local = Agent(running, {"worker_id": worker.id, "token": token})
        await local.register()
        await local.open_stream()
        first = await running.submit(config=CPU_CONFIG, target="auto")
        second = await running.submit(config=CPU_CONFIG, target="auto")
        third = await running.submit(config=CPU_CONFIG, target="worker")
        assert first["allocated_worker_id"] == remote.id
        assert second["allocated_worker_id"] == local.id
        assert third["status"] == "queued"
        again, kept = await administer.local_worker(running.fleet, token, ORCHESTRATOR)
        assert (again.id, kept) == (worker.id, token)


async def test_where_a_limit_is_raised_those_go_who_came_first_whatever_they_ask_for() -> None:
    async with orchestrator() as running:
        await running.worker(max_jobs=9, labels={"room": "a"})
        await running.post("/api/queue/concurrency", {"global_running": 0})
        asked = [{}, {"worker_labels": {"room": "a"}}, {"worker_labels": {"room": "a"}}, {}]
        jobs = [await running.submit(**one) for one in asked]
        await running.post("/api/queue/concurrency", {"global_running": 2})
        states = [(await running.job(job["job_id"]))["status"] for job in jobs]
        assert states == ["dispatched", "dispatched", "queued", "queued"]
