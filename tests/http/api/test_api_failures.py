"""A job that failed, as its user finds it."""

from tests.http.api_kit import orchestrator


async def test_a_failed_job_says_why_what_shows_it_and_what_to_do() -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.take()
        assert (await running.job(job["job_id"]))["failure"] is None
        await agent.report(offer, "failed", exit_code=1, last_lines=f"step 3\n{line}")
        failure = (await running.job(job["job_id"]))["failure"]
        assert (failure["class"], failure["evidence"]) == ("gpu_out_of_memory", line)
        assert "smaller batch" in failure["advice"]
        attempts = (await running.get(f"/api/jobs/{job['job_id']}/attempts"))["attempts"]
        assert attempts[0]["failure_class"] == "gpu_out_of_memory"
        events = (await running.get(f"/api/jobs/{job['job_id']}/events"))["events"]
        failed = next(event for event in events if event["event_type"] == "job.failed")
        assert failed["details"]["failure_evidence"] == line
