"""A user moves the folder that he has: every layout of it, what is wrong with it, and a LyCORIS training from it."""

import json
import shutil
from pathlib import Path
from typing import Any

from devtools.real_trainer.stage import Stage
from simpletuner_fleet.core.training.trainer_release import release_of

LYCORIS = {
    "algo": "lokr",
    "multiplier": 1.0,
    "linear_dim": 4,
    "linear_alpha": 1,
    "factor": 2,
    "apply_preset": {"target_module": ["Attention"]},
}
LAYOUTS = ("mine", "by-toml", "by-env", "wrapped")
STEPS = 4


def run(stage: Stage) -> list[str]:
    project, models = stage.folder / "project", stage.folder / "models"
    models.mkdir()
    _lay_out(stage, project, models)
    stage.worker("one", writable=(models,))
    bundles = [_imported(stage, project, name) for name in LAYOUTS]
    assert all(one == bundles[0] for one in bundles), bundles
    refused = stage.cli("configs", "import", "gone", cwd=project, refuses=True)
    assert "no-such-lycoris.json" in refused, refused
    seen = [
        f"{len(LAYOUTS)} layouts (config.json, .toml, .env, a wrapper) give one config with {list(bundles[0]['files'])}",
        f"a file that is not there: {_line_with(refused, 'no-such-lycoris.json')}",
        *_told(stage, project),
        *_matched(stage),
        *_trained(stage, models),
    ]
    return [*seen, *_pushed(stage)]


def _lay_out(stage: Stage, project: Path, models: Path) -> None:
    settings = stage.settings(
        lora_type="lycoris",
        max_train_steps=STEPS,
        checkpoint_step_interval=2,
        checkpoints_total_limit=1,
        output_dir=str(models),
    )
    del settings["lora_rank"]
    for name in (*LAYOUTS, "wrong", "gone"):
        folder = project / "config" / name
        folder.mkdir(parents=True)
        (folder / "multidatabackend.json").write_text(json.dumps(stage.dataloader()))
        (folder / "lycoris_config.json").write_text(json.dumps(LYCORIS))
        own = {
            **settings,
            "data_backend_config": f"config/{name}/multidatabackend.json",
            "lycoris_config": f"config/{name}/lycoris_config.json",
        }
        if name == "by-toml":
            (folder / "config.toml").write_text("".join(f"{key} = {json.dumps(own[key])}\n" for key in own))
        elif name == "by-env":
            words = " ".join(f"--{key}='{_plain(own[key])}'" for key in own)
            (folder / "config.env").write_text(f'TRAINER_EXTRA_ARGS="{words}"\nexport NCCL_DEBUG=WARN\n')
        elif name == "wrapped":
            (folder / "config.json").write_text(json.dumps({"_metadata": {"name": name}, "config": own}))
        else:
            wrong = {"lerning_rate": 1e-3, "max_train_steps": "many"} if name == "wrong" else {}
            lost = {"lycoris_config": "config/gone/no-such-lycoris.json"} if name == "gone" else {}
            (folder / "config.json").write_text(json.dumps({**own, **wrong, **lost}))


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _imported(stage: Stage, project: Path, name: str) -> Any:
    stage.cli("configs", "import", name, cwd=project)
    bundle = json.loads(stage.cli("configs", "get", name, "--json"))
    return {key: bundle[key] for key in ("settings", "dataloader", "files")}


def _told(stage: Stage, project: Path) -> list[str]:
    """The worker has asked its trainer for the options by then, in its own time."""

    def is_told() -> bool:
        said = stage.cli("configs", "validate", "wrong", cwd=project, refuses=None)
        return "The settings were not checked" not in said

    stage.wait_for("the trainer's options are known", is_told)
    said = stage.cli("configs", "validate", "wrong", cwd=project, refuses=True)
    assert "learning_rate" in said, said
    assert "max_train_steps" in said, said
    return [
        f"a misspelt option: {_line_with(said, 'lerning_rate')}",
        f"a wrong type: {_line_with(said, 'max_train_steps')}",
    ]


def _matched(stage: Stage) -> list[str]:
    asked = "trainer>=4.3" if not release_of(stage.version).guard else "trainer<4"
    job_id = _submitted(stage, "--label", asked)
    said = stage.cli("jobs", "explain", job_id)
    assert stage.job(job_id)["status"] == "queued", stage.job(job_id)
    stage.cli("jobs", "cancel", job_id)
    why = _line_with(said, f"label {asked}")
    assert f"one: SimpleTuner {stage.version}" in why, said
    return [f"--label '{asked}' waits: {why}"]


def _submitted(stage: Stage, *words: str) -> str:
    """The machine has no GPU, and the config wants one."""
    answer = stage.cli("jobs", "submit", "mine", "--target", "worker", "--gpus", "0", *words, "--json")
    return str(json.loads(answer)["job_id"])


def _trained(stage: Stage, models: Path) -> list[str]:
    """Two jobs with one output folder named in full: neither sees what the other has made."""
    jobs = []
    for _ in range(2):
        job_id = _submitted(stage)
        job = stage.ended(job_id)
        assert job["status"] == "completed", (job, stage.log(job_id)[-2000:])
        assert [one["step"] for one in stage.checkpoints(job_id)] == [STEPS], stage.checkpoints(job_id)
        assert (models / f"{job_id}-1" / f"checkpoint-{STEPS}").is_dir(), sorted(models.iterdir())
        losses = stage.get(f"/api/jobs/{job_id}/metrics?points=100")["series"]["step_loss"]
        assert len(losses) == STEPS, losses
        jobs.append(job_id)
    return [
        f"a LyCORIS training of {STEPS} steps, twice into one output_dir named in full: each in a folder of its own",
        f"{STEPS} points of step_loss each; checkpoints_total_limit 1 kept the newest alone",
    ]


def _pushed(stage: Stage) -> list[str]:
    """With the indices that the trainer has just written."""
    pictures = stage.folder / "pushed"
    shutil.copytree(stage.material / "pictures", pictures, ignore=shutil.ignore_patterns("aspect_ratio_*"))
    count = len(list(pictures.iterdir()))
    indices = list((stage.folder / "one" / "caches").rglob("aspect_ratio_bucket_*.json"))
    assert indices, "the trainer has written no index"
    for index in indices:
        shutil.copy(index, pictures / index.name)
    stage.cli("data", "push", str(pictures))
    (pushed,) = json.loads(stage.cli("data", "list", "--json"))["items"]
    assert pushed["files"] == count, pushed
    names = sorted({index.name for index in indices})
    return [f"data push leaves out {', '.join(names)}"]


def _line_with(text: str, word: str) -> str:
    return next(line.strip() for line in text.splitlines() if word in line)
