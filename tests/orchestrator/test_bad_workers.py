"""Workers that start nothing, and fleets that vanish at once."""

from typing import Any

from simpletuner_fleet.core.policy import Policy
from tests.http.api_kit import Agent, Running, orchestrator

NO_SPACE: dict[str, Any] = {
    "reason": "start_failed",
    "blame": "worker",
    "error": "the worker could not prepare the job: No space left on device",
}


async def fails_to_start(agent: Agent) -> dict[str, Any]:
    offer = await agent.take()
    await agent.report(offer, "failed", **NO_SPACE)
    return offer


async def shown(running: Running, agent: Agent) -> dict[str, Any]:
    return dict(await running.get(f"/api/admin/workers/{agent.id}"))


async def test_a_worker_that_starts_nothing_is_set_aside_and_no_job_is_lost_to_it() -> None:
    async with orchestrator() as running:
        bad = await running.worker("bad")
        jobs = [(await running.submit())["job_id"] for _ in range(20)]
        for _ in range(3):
            await fails_to_start(bad)
            await running.pass_time(6.0)
        seen = await shown(running, bad)
        assert seen["set_aside_until"] is not None
        assert "No space left" in seen["set_aside_reason"]
        states = {(await running.job(job_id))["status"] for job_id in jobs}
        assert states == {"queued"}, "nobody failed"
        why = await running.get(f"/api/jobs/{jobs[-1]}/explain")
        assert why["code"] == "ALL_MATCHING_SET_ASIDE"
        events = (await running.get("/api/audit", target_id=bad.id))["entries"]
        assert "worker.set_aside" in [one["event_type"] for one in events]

        good = await running.worker("good")
        assert (await good.take())["job_id"] in jobs


async def test_a_worker_set_aside_is_tried_again_and_trusted_once_it_starts_something() -> None:
    async with orchestrator() as running:
        worker = await running.worker()
        for _ in range(4):
            await running.submit()
        for _ in range(3):
            await fails_to_start(worker)
            await running.pass_time(6.0)
        for _ in range(50):
            await running.pass_time(6.0)
            await worker.heartbeat()
        offer = await worker.take()
        await worker.report(offer, "running")
        assert (await shown(running, worker))["set_aside_until"] is None
        await worker.report(offer, "completed", exit_code=0)
        assert (await worker.take())["job_id"] != offer["job_id"]


async def test_an_admin_lets_a_worker_work_again_at_once() -> None:
    async with orchestrator() as running:
        worker = await running.worker()
        for _ in range(3):
            await running.submit()
        for _ in range(3):
            await fails_to_start(worker)
            await running.pass_time(6.0)
        assert (await shown(running, worker))["set_aside_until"]
        await running.post(f"/api/admin/workers/{worker.id}/resume")
        assert await worker.take()


async def test_jobs_of_a_fleet_that_vanished_at_once_stay_with_it_for_a_while() -> None:
    policy = Policy(mass_loss_wait_s=300.0, mass_loss_requeues_per_s=0.5)
    async with orchestrator(policy=policy) as running:
        agents = [await running.worker(f"gpu-{number}") for number in range(8)]
        offers = []
        for _ in agents:
            await running.submit()
        for agent in agents:
            offer = await agent.take()
            await agent.report(offer, "running")
            offers.append(offer)
        survivor, cut_off = agents[0], agents[1:]
        for _ in range(25):
            await running.pass_time(6.0)
            await survivor.heartbeat({"job_id": offers[0]["job_id"], "epoch": offers[0]["epoch"]})
        assert {(await shown(running, agent))["status"] for agent in cut_off} == {"offline"}
        states = [(await running.job(offer["job_id"]))["status"] for offer in offers]
        assert states == ["running"] * 8, "nothing is given away yet"

        back, its = cut_off[0], offers[1]
        await back.register(attempts=[{"job_id": its["job_id"], "epoch": its["epoch"], "state": "running"}])
        await back.open_stream()
        for _ in range(60):
            await running.pass_time(6.0)
            for agent, offer in ((survivor, offers[0]), (back, its)):
                await agent.heartbeat({"job_id": offer["job_id"], "epoch": offer["epoch"]})
        ended = [await running.job(offer["job_id"]) for offer in offers]
        assert [job["losses"] for job in ended] == [0, 0, 1, 1, 1, 1, 1, 1]
