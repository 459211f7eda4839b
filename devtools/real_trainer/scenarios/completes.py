"""A training goes to its end: every checkpoint stored, the model too, a loss for its steps, the version known."""

from devtools.real_trainer.facts import bar, checkpoint_files
from devtools.real_trainer.stage import Stage


def run(stage: Stage) -> list[str]:
    stage.worker("one")
    job_id = stage.submit(stage.settings(max_train_steps=12))
    job = stage.ended(job_id)
    assert job["status"] == "completed", job
    steps = [one["step"] for one in stage.checkpoints(job_id)]
    assert steps == [4, 8, 12], steps
    names = {
        one["name"]
        for one in stage.get(f"/api/jobs/{job_id}/artifacts")["manifests"]
        if one["kind"] == "artifact"
    }
    assert names, "the model is not stored"
    series = stage.get(f"/api/jobs/{job_id}/metrics?points=100")["series"]
    curves = {key: len(points) for key, points in series.items()}
    losses = {key: count for key, count in curves.items() if "loss" in key}
    assert losses, curves
    folder = stage.attempt_folder(job_id)
    assert folder, "its folder is gone"
    stage.seen["checkpoint"] = checkpoint_files(folder / "job" / "output" / "checkpoint-8")
    stage.seen["bar"] = bar(stage.log(job_id))
    (worker,) = [one for one in stage.get("/api/admin/workers")["workers"] if one["name"] == "one"]
    assert worker["reported_labels"]["trainer"] == stage.version, worker["reported_labels"]
    return [
        f"behind a wall of the kind {stage.wall('one')}",
        f"12 steps, checkpoints {steps} stored, artifacts {sorted(names)}",
        f"report_to none: points by key {losses}",
    ]
