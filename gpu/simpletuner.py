"""The real SimpleTuner on a real GPU: `python3 gpu/simpletuner.py ARCHIVE [--out FILE]`, with what `pack_trainer.py` made.

For a machine with an NVIDIA GPU, torch, accelerate and transformers and no network. Makes a model of random weights, then
under a real server and workers, every job behind a wall: a training to its end, a machine that is killed and another that
goes on from the checkpoint, a cancellation with a checkpoint first, and a GPU that is full. Prints JSON.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TINY = HERE.parent / "devtools" / "real_trainer" / "tiny.py"
HOLD = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(0, free - 400 * 2**20), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


def unpacked(archive: Path, folder: Path) -> Path:
    """The carried packages; readable for the users that jobs get."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    folder.chmod(0o755)
    for path in (folder / "packages").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder / "packages"


def trainer_python(folder: Path, packages: Path) -> Path:
    """An environment with the machine's own packages first, then the carried ones."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)})
    own = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (Path(site) / "carried.pth").write_text("".join(f"{path}\n" for path in [*own, packages]))
    return python


def make_material(python: Path, folder: Path) -> Path:
    material = folder / "tiny"
    subprocess.run([str(python), str(TINY), str(material)], check=True, capture_output=True)
    for path in [material, *material.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return material


def training(material: Path, steps: int, every: int) -> dict[str, Any]:
    """As people have it: a config.json with its dataloader."""
    model = str(material / "model")
    settings = {
        "model_family": "sdxl",
        "model_type": "lora",
        "lora_type": "standard",
        "lora_rank": 4,
        "pretrained_model_name_or_path": model,
        "pretrained_vae_model_name_or_path": model,
        "resolution": 64,
        "resolution_type": "pixel",
        "train_batch_size": 1,
        "max_train_steps": steps,
        "num_train_epochs": 0,
        "checkpoint_step_interval": every,
        "checkpoints_total_limit": 20,
        "learning_rate": 1e-3,
        "lr_scheduler": "constant",
        "lr_warmup_steps": 0,
        "optimizer": "adamw_bf16",
        "mixed_precision": "bf16",
        "base_model_precision": "no_change",
        "gradient_checkpointing": False,
        "attention_mechanism": "diffusers",
        "disable_benchmark": True,
        "aspect_bucket_rounding": 2,
        "minimum_image_size": 0,
        "seed": 42,
        "report_to": "none",
        "validation_disable_unconditional": True,
        "validation_prompt": "a red square",
        "validation_resolution": "64x64",
        "validation_steps": 50,
        "validation_num_inference_steps": 2,
        "validation_guidance": 1.0,
    }
    pictures = {
        "id": "pictures",
        "type": "local",
        "instance_data_dir": str(material / "pictures"),
        "caption_strategy": "textfile",
        "metadata_backend": "discovery",
        "resolution": 64,
        "resolution_type": "pixel",
        "minimum_image_size": 0,
        "crop": True,
        "crop_style": "center",
        "crop_aspect": "square",
        "cache_dir_vae": "cache/vae",
        "repeats": 50,
    }
    texts = {
        "id": "texts",
        "dataset_type": "text_embeds",
        "type": "local",
        "default": True,
        "cache_dir": "cache/text",
    }
    # What the worker itself needs to be found is no affair of its jobs.
    env = {"PYTHONPATH": ""}
    return {"trainer": "simpletuner", "settings": settings, "dataloader": [pictures, texts], "env": env}


def seen_of(fleet: Any, job: dict[str, Any]) -> dict[str, Any]:
    job_id = job["id"]
    stored = fleet.call("GET", f"/api/jobs/{job_id}/artifacts")["manifests"]
    series = fleet.call("GET", f"/api/jobs/{job_id}/metrics?points=2000")["series"]
    losses = series.get("step_loss", [])
    attempts = fleet.call("GET", f"/api/jobs/{job_id}/attempts")["attempts"]
    rates = re.findall(r"([0-9.]+)(it/s|s/it)", fleet.log(job_id))
    return {
        "status": job["status"],
        "error": job["error"],
        "failure": job.get("failure"),
        "attempts": [(one["worker_name"], one["outcome"], one["resumed_from_step"]) for one in attempts],
        "checkpoints": [one["step"] for one in stored if one["kind"] == "checkpoint"],
        "artifacts": [one["name"] for one in stored if one["kind"] == "artifact"],
        "steps_with_a_loss": len({point["step"] for point in losses}),
        "loss_first_and_last": [losses[0]["last"], losses[-1]["last"]] if losses else None,
        "gpu_curves": [key for key in series if key.startswith("gpu.")],
        "last_rate": " ".join(rates[-1]) if rates else None,
        "gpus": job["gpus"],
        "last_lines": (attempts[-1]["last_lines"] or "")[-1500:] if job["status"] == "failed" else None,
    }


def completes(fleet: Any, config: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    job = fleet.ended(fleet.submit(config))
    return {**seen_of(fleet, job), "took_s": round(time.monotonic() - began, 1)}


def killed_and_resumed(fleet: Any, config: dict[str, Any], wait_for: Any, words: list[str]) -> dict[str, Any]:
    job_id = fleet.submit(config, max_retries=2)
    wait_for(lambda: fleet.call("GET", f"/api/jobs/{job_id}/artifacts")["manifests"], "a checkpoint", 180)
    at = (fleet.job(job_id)["progress"] or {}).get("step")
    fleet.kill_machine("gpu-1")
    fleet.worker("gpu-2", *words)
    return {**seen_of(fleet, fleet.ended(job_id)), "killed_at_step": at}


def cancelled(fleet: Any, config: dict[str, Any], wait_for: Any) -> dict[str, Any]:
    job_id = fleet.submit(config)
    wait_for(lambda: ((fleet.job(job_id)["progress"] or {}).get("step") or 0) > 20, "its 20th step", 180)
    began = time.monotonic()
    fleet.call("POST", f"/api/jobs/{job_id}/cancel", {"checkpoint_first": True})
    job = fleet.ended(job_id)
    return {**seen_of(fleet, job), "took_s": round(time.monotonic() - began, 1)}


def gpu_is_full(fleet: Any, config: dict[str, Any], python: Path) -> dict[str, Any]:
    holder = subprocess.Popen(
        [str(python), "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout
        assert holder.stdout.readline().strip() == "held"
        return seen_of(fleet, fleet.ended(fleet.submit(config)))
    finally:
        holder.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--isolation", default="required", help="as the worker's option of this name")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gpu-simpletuner-"))
    packages = unpacked(args.archive, folder)
    # The fleet's own packages are carried, too, for this program and all that it starts.
    sys.path.append(str(packages))
    os.environ["PYTHONPATH"] = ":".join([str(HERE.parent / "src"), str(packages)])
    from proof import Fleet, wait_for

    python = trainer_python(folder / "trainer", packages)
    del os.environ["PYTHONPATH"]
    material = make_material(python, folder)
    os.environ["PYTHONPATH"] = ":".join([str(HERE.parent / "src"), str(packages)])
    os.environ["HF_HUB_OFFLINE"] = "1"
    words = ["--trainer-python", str(python), "--job-path", f"{material}:ro"]
    results: dict[str, Any] = {}
    fleet = Fleet(folder, args.isolation)
    scenes: dict[str, Any] = {
        "completes": lambda: completes(fleet, training(material, 100, 25)),
        "killed and resumed": lambda: killed_and_resumed(fleet, training(material, 400, 50), wait_for, words),
        "cancelled with a checkpoint first": lambda: cancelled(
            fleet, training(material, 20000, 15000), wait_for
        ),
        "GPU full": lambda: gpu_is_full(fleet, training(material, 50, 25), python),
    }
    try:
        worker = fleet.worker("gpu-1", *words)
        results["worker"] = {key: worker[key] for key in ("gpu_count", "gpu_name", "reported_labels")}
        for name, scene in scenes.items():
            try:
                results[name] = scene()
            except Exception as error:  # what else can be seen is worth a machine's time
                results[name] = f"FAILED: {error!r}"
            print(json.dumps({name: results[name]}, indent=1, default=str), flush=True)
    finally:
        fleet.stop()
        print(json.dumps(results, indent=1, default=str), flush=True)
        if args.out:
            args.out.write_text(json.dumps(results, indent=1, default=str))
            for log in [*folder.glob("*.log"), *folder.glob("gpu-*/attempts/*/output.log")]:
                name = log.name if log.parent == folder else f"{log.parent.name}.log"
                args.out.with_name(name).write_bytes(log.read_bytes()[-200_000:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
