"""Real trainings that go wrong: the watchdog finds it, and what the job asked for follows."""

from tests.e2e.kit import Json, World
from tests.e2e.processes import wait_until
from tests.e2e.storage.test_checkpoints import LONG, attempt_folder, demo, stored_step

BAD_STEP = 60


def nans(world: World, job_id: str) -> list[Json]:
    """A disk may be low wherever this runs."""
    notes = world.get(f"/api/jobs/{job_id}/events")["notes"]
    return [note for note in notes if note["kind"] == "watchdog_nan"]


def spoiled_once() -> Json:
    settings = {"demo_nan_at_step": BAD_STEP, "demo_faults_on_attempts": [1]}
    return {**demo(**settings), "watchdog": {"nan": "restart-from-last-good"}}


def test_a_nan_takes_the_training_back_below_it_and_it_finishes(world: World) -> None:
    world.start_worker("steady")
    job_id = world.submit(spoiled_once())
    job = world.becomes(job_id, "completed", LONG)
    first, second = world.attempts(job_id)
    assert (first["outcome"], first["failure_class"]) == ("failed", "watchdog_nan")
    assert first["resume_below"] == BAD_STEP
    assert 0 < second["resumed_from_step"] < BAD_STEP
    assert job["failures"] == 1
    assert [note["attempt"] for note in nans(world, job_id)] == [1]
    assert f"the loss was NaN at step {BAD_STEP}" in world.cli("jobs", "events", job_id).stdout
    losses = world.get(f"/api/jobs/{job_id}/metrics?points=5000&key=loss")["series"]["loss"]
    assert "NaN" not in [bucket["last"] for bucket in losses]
    spoiled = world.get(f"/api/jobs/{job_id}/metrics?points=5000&key=loss&attempt=1")["series"]["loss"]
    assert "NaN" in [bucket["last"] for bucket in spoiled]
    printed = world.cli("jobs", "metrics", job_id, "--key", "loss", "--attempt", "1", "-o", "csv").stdout
    assert ",NaN" in printed


def test_what_is_found_while_nobody_listens_is_told_and_followed_later(bare_world: World) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_HEARTBEAT_INTERVAL="1", SIMPLETUNER_HEARTBEAT_TIMEOUT="60")
    worker = world.start_worker("steady")
    job_id = world.submit(spoiled_once())
    stored_step(world, job_id, 20)
    attempt = world.attempts(job_id)[0]
    world.kill_server()
    findings_file = attempt_folder(worker, attempt) / "watchdog.json"
    wait_until(findings_file.exists, "the watchdog finds the NaN", LONG)
    world.restart_server()
    world.becomes(job_id, "completed", LONG)
    assert [note["attempt"] for note in nans(world, job_id)] == [1]
    assert 20 <= world.attempts(job_id)[1]["resumed_from_step"] < BAD_STEP


def test_a_training_that_hangs_fails_if_its_job_says_so_and_names_the_cause(world: World) -> None:
    world.start_worker("steady")
    config = {**demo(demo_hang_at_step=30), "watchdog": {"stall_s": 2}}
    job_id = world.submit(config, watchdog={"stall": "fail"})
    stored_step(world, job_id, 20)
    job = world.becomes(job_id, "failed", LONG)
    assert job["failure"]["class"] == "watchdog_stall"
    assert job["error"] == "watchdog: no step for 2 s after step 29"
    shown = world.cli("jobs", "get", job_id)
    assert "no step for 2 s after step 29; the job fails" in shown.stdout + shown.stderr
