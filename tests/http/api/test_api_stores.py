"""The same story over every home of the store."""

from simpletuner_fleet.ports import Store
from tests.http.api_kit import orchestrator


async def test_a_whole_story_reads_the_same_everywhere(store: Store) -> None:
    async with orchestrator(store) as running:
        await running.save_config("c")
        agent = await running.worker("gpu-1", gpus=2)
        jobs = [await running.submit(config_name="c", priority=at) for at in range(4)]
        assert jobs[0]["status"] == "dispatched"
        queue = (await running.get("/api/queue", limit=2))["jobs"]
        assert [job["id"] for job in queue] == [jobs[3]["job_id"], jobs[2]["job_id"]]
        assert all(job["explain"]["code"] == "ALL_MATCHING_BUSY" for job in queue)
        offer = await agent.take()
        await agent.report(offer, "running", progress={"step": 1, "total": 2})
        assert (await agent.heartbeat(offer))["stop"] == []
        await running.post(f"/api/queue/{jobs[2]['job_id']}/cancel")
        await agent.report(offer, "completed")
        second = await agent.take()
        assert second["job_id"] == jobs[3]["job_id"]
        await agent.report(second, "failed", exit_code=7)
        rotated = await running.post(f"/api/admin/workers/{agent.id}/token")
        await agent.heartbeat(expect=401)
        agent.use_token(rotated["token"])
        await agent.register(gpus=2)
        await agent.open_stream()
        states = {job["id"]: job["status"] for job in (await running.get("/api/jobs"))["jobs"]}
        assert [states[job["job_id"]] for job in jobs] == ["completed", "dispatched", "cancelled", "failed"]
        stats = await running.get("/api/queue/stats")
        assert stats["total"] == 4
        assert (await running.get("/api/audit/verify"))["valid"] is True
        page = (await running.http.get("/metrics")).text
        assert 'simpletuner_jobs{state="completed"} 1.0' in page
