"""A machine that can start nothing must not eat the queue."""

import shutil

from tests.e2e.kit import World
from tests.e2e.processes import wait_until


def test_a_worker_whose_disk_takes_nothing_fails_no_job_for_good(world: World) -> None:
    bad = world.start_worker("bad")
    shutil.rmtree(bad.work_dir / "attempts")
    (bad.work_dir / "attempts").write_text("not a folder any more")
    jobs = [world.submit(world.command("true")) for _ in range(12)]
    # Looked at once: after a pause it is tried again, and for that moment nothing is said of it.
    why = wait_until(lambda: bad.seen["set_aside_reason"], "it is set aside")
    assert "the worker could not prepare the job" in why
    assert {world.job(job_id)["status"] for job_id in jobs} <= {"queued", "dispatched", "running"}
    world.start_worker("good")
    for job_id in jobs:
        job = world.becomes(job_id, "completed")
        assert (job["failures"], job["losses"]) == (0, 0)
    assert bad.running.alive


def test_a_program_that_is_nowhere_fails_its_job_after_a_few_tries_and_no_worker(world: World) -> None:
    worker = world.start_worker("fine")
    job_id = world.submit(world.command("/no/such/program"))
    job = world.becomes(job_id, "failed")
    assert "could not be started 3 times" in job["error"]
    assert "/no/such/program" in job["error"]
    assert world.becomes(world.submit(world.command("true")), "completed")
    assert worker.seen["set_aside_until"] is None
