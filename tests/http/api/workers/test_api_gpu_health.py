"""A GPU that somebody else uses, or that broke, is handed to nobody until it is free and well again."""

from typing import Any

from tests.http.api_kit import orchestrator

GPU_JOB = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 1}}


async def test_a_gpu_in_use_by_somebody_else_waits_and_is_handed_out_when_it_is_free() -> None:
    async with orchestrator() as running:
        agent = await running.worker(gpus=1)
        uuid = (await running.get("/api/admin/workers"))["workers"][0]["gpus"][0]["uuid"]

        async def sees(**health: Any) -> None:
            await agent.heartbeat(gpus=[{"uuid": uuid, **health}])

        async def unusable() -> Any:
            return (await running.get("/api/admin/workers"))["workers"][0]["gpus"][0]["unusable"]

        await sees(foreign_memory_gb=12.5, healthy=True)
        assert await unusable() == "in use by another program"
        job = await running.submit(config=GPU_JOB)
        job_now = await running.job(job["job_id"])
        assert (job_now["status"], job_now["explain"]["code"]) == ("queued", "ALL_MATCHING_UNUSABLE")
        await sees()
        assert await unusable() == "in use by another program"
        await sees(foreign_memory_gb=0.3, healthy=True)
        assert await unusable() is None
        offer = await agent.take()
        assert offer["job_id"] == job["job_id"]
        await sees(foreign_memory_gb=70.0, healthy=True)
        assert await unusable() is None, "the job's own memory"
        await sees(healthy=False)
        assert await unusable() == "unhealthy"


async def test_a_worker_says_what_is_unusable_as_it_registers_and_its_heartbeats_know_better() -> None:
    async with orchestrator() as running:
        agent = await running.worker(gpus=2)

        async def unusable() -> list[Any]:
            gpus = (await running.get("/api/admin/workers"))["workers"][0]["gpus"]
            return [gpu["unusable"] for gpu in gpus]

        uuids = [f"GPU-{agent.id}-{at}" for at in range(2)]
        await agent.heartbeat(gpus=[{"uuid": uuids[0], "healthy": False}])
        await agent.register(gpus=2)
        assert await unusable() == ["unhealthy", None]
        agent.incarnation = "i-2"
        reasons = ("in use by another program", "\x1b[31mnonsense")
        listed = [
            {"index": at, "uuid": uuid, "unusable": why}
            for at, (uuid, why) in enumerate(zip(uuids, reasons, strict=True))
        ]
        body = {
            "name": "w",
            "persistent": True,
            "incarnation": "i-2",
            "seq": 99,
            "gpus": listed,
            "attempts": [],
        }
        await agent.call("register", body)
        assert await unusable() == ["in use by another program", None]
