"""When a waiting job would start, over HTTP."""

from tests.http.api_kit import orchestrator


async def test_a_waiting_job_is_told_whose_end_it_waits_for_and_what_would_start_now() -> None:
    async with orchestrator() as running:
        busy = await running.worker("gpu-1", gpus=2)
        first = await running.submit(gpus=2, name="cats")
        offer = await busy.take()
        await busy.report(offer, "running", progress={"step": 10, "total": 100, "rate": 0.1, "eta_s": 4800})
        await running.worker("gpu-2", gpus=1)
        waiting = await running.submit(gpus=2)
        outlook = await running.get(f"/api/jobs/{waiting['job_id']}/outlook")
        assert (outlook["start"]["worker"], outlook["start"]["job"], outlook["start"]["ahead"]) == (
            "gpu-1",
            "cats",
            0,
        )
        assert outlook["now_with"] == [
            {"gpus": 1, "min_vram_gb": None, "without_label": None, "target": None}
        ]
        behind = await running.submit(gpus=2)
        assert (await running.get(f"/api/jobs/{behind['job_id']}/outlook"))["start"] is None
        assert await running.get(f"/api/jobs/{first['job_id']}/outlook") == {
            "start": None,
            "now_with": [],
            "busy": [],
        }


async def test_where_no_end_is_known_the_busy_worker_is_named_all_the_same() -> None:
    async with orchestrator() as running:
        busy = await running.worker("gpu-1", gpus=1)
        first = await running.submit(gpus=1, name="cats")
        await busy.report(await busy.take(), "running")
        waiting = await running.submit(gpus=1)
        outlook = await running.get(f"/api/jobs/{waiting['job_id']}/outlook")
        assert outlook["start"] is None
        assert outlook["busy"] == [{"worker": "gpu-1", "job_id": first["job_id"], "job": "cats"}]
