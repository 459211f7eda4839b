"""What a job shows while it runs: how its GPUs do, and the pictures it draws."""

import sys
from pathlib import Path

from tests.e2e.jobs.test_metrics import demo
from tests.e2e.kit import Json, Worker, World
from tests.e2e.processes import Program, wait_until

GPU_WORKER = Path(__file__).parent.parent / "gpu_worker.py"
PNG = b"\x89PNG\r\n\x1a\n"
LONG = 90.0


def start_gpu_worker(world: World, name: str) -> Worker:
    worker = world.worker_of(world.post("/api/admin/workers", {"name": name}), gpus=None)
    words = [sys.executable, str(GPU_WORKER), "worker", name, world.url, str(worker.work_dir)]
    log = world.folder / f"{name}.log"
    worker.program = Program(name, words, {**world.environment, **worker.environment}, log)
    world.programs.append(worker.program)
    return worker.becomes("idle")


def pictures(world: World, job_id: str) -> dict[str, Json]:
    manifests = world.get(f"/api/jobs/{job_id}/artifacts")["manifests"]
    samples = [one for one in manifests if one["name"] == "samples"]
    assert len(samples) <= 1, "a newer one replaces the older"
    return {file["path"]: {**file, "manifest": one["id"]} for one in samples for file in one["files"]}


def metrics(world: World, job_id: str) -> Json:
    return world.get(f"/api/jobs/{job_id}/metrics")


def test_its_gpus_and_its_pictures_are_seen_before_it_ends(world: World) -> None:
    start_gpu_worker(world, "seer")
    long_enough = demo(max_train_steps=4000, validation_steps=10, demo_step_delay_s=0.02)
    job_id = world.submit(long_enough, gpus=1)
    wait_until(lambda: pictures(world, job_id), "a picture is stored", LONG)
    wait_until(lambda: "gpu.1.utilization" in metrics(world, job_id)["keys"], "its GPU is told of", LONG)
    assert world.job(job_id)["status"] == "running"
    metrics_now = metrics(world, job_id)
    assert [key for key in metrics_now["keys"] if key.startswith("gpu.")] == [
        "gpu.1.memory_gb",
        "gpu.1.temperature_c",
        "gpu.1.utilization",
    ]
    assert {point["last"] for point in metrics_now["series"]["gpu.1.memory_gb"]} == {80.5}
    path, picture = next(iter(pictures(world, job_id).items()))
    assert path.startswith("validation_images/step_")
    base = f"/api/jobs/{job_id}/artifacts/{picture['manifest']}"
    assert world.call("GET", f"{base}/files/{path}").content.startswith(PNG)
    world.post(f"/api/jobs/{job_id}/cancel", {})
    world.becomes(job_id, "cancelled", LONG)
    assert path in pictures(world, job_id), "what was shown stays"
