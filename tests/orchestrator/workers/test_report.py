"""What a worker reports of the end of a training, as it is stored."""

from tests.http.api_kit import orchestrator


async def test_a_blank_error_is_none() -> None:
    async with orchestrator() as running:
        worker, job_id = await running.worker(), (await running.submit(max_retries=0))["job_id"]
        offer = await worker.take()
        await worker.report(offer, "running")
        await worker.report(offer, "failed", error=" \n\t", exit_code=3)
        job = await running.job(job_id)
        assert job["status"] == "failed"
        assert job["error"] == "the trainer exited with code 3"


async def test_an_error_is_kept_without_the_space_around_it() -> None:
    async with orchestrator() as running:
        worker, job_id = await running.worker(), (await running.submit(max_retries=0))["job_id"]
        offer = await worker.take()
        await worker.report(offer, "running")
        await worker.report(offer, "failed", error=" " * 10_000 + "no space left\non the disk\n", exit_code=3)
        assert (await running.job(job_id))["error"] == "no space left\non the disk"
