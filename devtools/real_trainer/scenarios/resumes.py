"""A machine is cut off its power in the middle; the job goes on elsewhere from its last stored checkpoint."""

from devtools.real_trainer.stage import Stage

STEPS = 24
ONLINE = {"HF_HUB_OFFLINE": "0"}
"""3.1.6 cannot load a LoRA again while the hub is said to be offline."""


def run(stage: Stage) -> list[str]:
    stage.worker("one", env=ONLINE)
    slow = {"REAL_TRAINER_PACE": "1.5"}
    job_id = stage.submit(stage.settings(max_train_steps=STEPS), env=slow, max_retries=2)
    stage.wait_for("a checkpoint is stored", lambda: bool(stage.checkpoints(job_id)))
    at = stage.step(job_id)
    stage.kill("one")
    stage.worker("two", env=ONLINE)
    job = stage.ended(job_id)
    assert job["status"] == "completed", job
    attempts = stage.get(f"/api/jobs/{job_id}/attempts")["attempts"]
    assert len(attempts) == 2, attempts
    resumed = attempts[-1]["resumed_from_step"]
    assert resumed, attempts[-1]
    return [f"killed at step {at} of {STEPS}, went on from step {resumed} on another worker, completed"]
