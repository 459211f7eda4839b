"""Each kind of error that people meet ends as a failed job with its class, and the line that names what is wrong."""

import shutil
from typing import Any

from msgspec import Struct

from devtools.real_trainer.facts import failure as how_it_failed
from devtools.real_trainer.stage import Stage


class Mistake(Struct, frozen=True):
    code: str
    named: str
    settings: dict[str, Any] = {}
    loader: dict[str, Any] = {}
    env: dict[str, str] = {}


def run(stage: Stage) -> list[str]:
    pictures = stage.folder / "no-captions"
    shutil.copytree(stage.material / "pictures", pictures, ignore=shutil.ignore_patterns("*.txt", "*.json"))
    closed = stage.folder / "closed"
    shutil.copytree(stage.material / "model", closed)
    (closed / "vae" / "diffusion_pytorch_model.safetensors").chmod(0o600)
    stage.worker("one", job_paths=(pictures, closed))
    # In a folder that is granted: anything else is refused before the trainer could miss it.
    model, data = str(stage.material / "no-such-model"), str(stage.material / "no-such-pictures")
    lycoris = str(stage.material / "no-lycoris.json")
    mistakes = {
        "GPU out of memory at step 5 of 8": Mistake(
            "gpu_out_of_memory", "Tried to allocate", env={"REAL_TRAINER_FAULT": "oom:5"}
        ),
        "wrong model path": Mistake("model_missing", model, {"pretrained_model_name_or_path": model}),
        "missing data folder": Mistake("data_missing", data, loader={"instance_data_dir": data}),
        "unknown optimizer": Mistake("config", "adamw-nonsense", {"optimizer": "adamw-nonsense"}),
        "captions missing": Mistake(
            "captions_missing", "000.txt", loader={"instance_data_dir": str(pictures)}
        ),
        "missing lycoris file": Mistake(
            "file_missing", lycoris, {"lora_type": "lycoris", "lycoris_config": lycoris}
        ),
    }
    if (wall := stage.wall("one")) != "none":
        mistakes |= _out_of_reach(stage, wall)
    stage.seen["fails"] = {}
    tried = {name: _tried(stage, name, mistake) for name, mistake in mistakes.items()}
    wrong = {name: seen for name, seen in tried.items() if not seen.startswith(f"{mistakes[name].code}, ")}
    assert not wrong, (wrong, tried)
    return [f"{name}: {seen}" for name, seen in tried.items()]


def _out_of_reach(stage: Stage, wall: str) -> dict[str, Mistake]:
    """What is not for the worker's jobs, whether it is there or not."""
    hidden = stage.folder / "not-granted"
    hidden.mkdir()
    mistakes = {
        "model not granted to jobs": Mistake(
            "path_not_granted", f"--job-path {hidden}:ro", {"pretrained_model_name_or_path": str(hidden)}
        ),
        "model that is nowhere": Mistake(
            "path_not_granted",
            "--job-path /no/such/model:ro",
            {"pretrained_model_name_or_path": "/no/such/model"},
        ),
        "pictures that are nowhere": Mistake(
            "path_not_granted",
            "--job-path /no/such/pictures:ro",
            loader={"instance_data_dir": "/no/such/pictures"},
        ),
    }
    if wall == "user":
        mistakes["model that its owner alone may read"] = Mistake(
            "path_not_granted",
            "chmod -R a+rX",
            {"pretrained_model_name_or_path": str(stage.folder / "closed")},
        )
    return mistakes


def _tried(stage: Stage, name: str, mistake: Mistake) -> str:
    """What was seen: it begins with the class alone where the job failed and its line names what is wrong."""
    job_id = stage.submit(
        stage.settings(**mistake.settings), dataloader=stage.dataloader(**mistake.loader), env=mistake.env
    )
    job = stage.ended(job_id)
    if job["status"] != "failed":
        return f"NOT FAILED but {job['status']}"
    failure = job["failure"]
    if mistake.named not in failure["evidence"]:
        return f"NOT NAMED: {failure}"
    (attempt,) = stage.get(f"/api/jobs/{job_id}/attempts")["attempts"]
    if attempt["exit_code"] is not None:
        seen = how_it_failed(job, attempt["exit_code"], attempt["last_lines"] or "")
        stage.seen["fails"][name] = seen
    return f"{failure['class']}, exit code {attempt['exit_code']}"
