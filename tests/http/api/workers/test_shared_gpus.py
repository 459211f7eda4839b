"""One GPU is one GPU: two workers of one machine report it, and only one of them is given it at a time."""

from typing import Any

from tests.http.api_kit import Agent, Running, orchestrator

SHARED: list[dict[str, Any]] = [
    {"index": 0, "uuid": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "name": "NVIDIA H200", "vram_gb": 141}
]
CONFIG = {"trainer": "command", "settings": {"command": ["true"]}}


async def twin(running: Running, name: str) -> Agent:
    agent = Agent(running, await running.create_worker(name))
    await agent.register(gpus=SHARED)
    await agent.open_stream()
    return agent


async def test_a_gpu_that_two_workers_report_is_given_away_once() -> None:
    async with orchestrator() as running:
        agents = {agent.id: agent for agent in (await twin(running, "one"), await twin(running, "two"))}
        first = await running.submit(config=CONFIG)
        assert first["status"] == "dispatched"
        second = await running.submit(config=CONFIG)
        assert second["status"] == "queued"
        holder = agents.pop(first["allocated_worker_id"])
        (other,) = agents.values()

        seen = await running.get(f"/api/admin/workers/{other.id}")
        held_by = seen["gpus"][0]["held_by"]
        assert held_by["job_id"] == first["job_id"]
        assert held_by["worker_id"] == holder.id
        assert seen["status"] == "idle"

        why = await running.get(f"/api/jobs/{second['job_id']}/explain")
        assert why["code"] == "ALL_MATCHING_BUSY"
        verdicts = {worker["id"]: worker for worker in why["workers"]}
        assert verdicts[other.id]["fails"] == ["held_elsewhere"]
        assert verdicts[other.id]["gpus_held_through"] == [holder.id]

        offer = await holder.take()
        await holder.report(offer, "completed", exit_code=0)
        after = await running.get(f"/api/jobs/{second['job_id']}")
        assert after["status"] == "dispatched"
