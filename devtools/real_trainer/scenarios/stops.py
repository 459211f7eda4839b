"""A job is cancelled with a checkpoint first: a release that can be asked makes one, any other is not waited for."""

import time

from devtools.real_trainer.stage import Stage
from simpletuner_fleet.core.training.trainer_release import release_of


def run(stage: Stage) -> list[str]:
    stage.worker("one")
    settings = stage.settings(max_train_steps=400, checkpoint_step_interval=300)
    job_id = stage.submit(settings, env={"REAL_TRAINER_PACE": "0.5"})
    stage.wait_for("it trains", lambda: stage.step(job_id) >= 2)
    began = time.monotonic()
    stage.post(f"/api/jobs/{job_id}/cancel", {"checkpoint_first": True})
    job = stage.ended(job_id)
    took_s = time.monotonic() - began
    assert job["status"] == "cancelled", job
    steps = [one["step"] for one in stage.checkpoints(job_id)]
    if release_of(stage.version).signal_file:
        assert len(steps) == 1, steps
        return [f"cancelled in {took_s:.0f} s, checkpoint of step {steps[0]} made and stored first"]
    assert not steps, steps
    assert took_s < 120, took_s
    return [f"cannot be asked for a checkpoint: cancelled in {took_s:.0f} s without waiting for one"]
