"""Which worker gets which job, and what a job that waits says about it."""

import json
from typing import Any

import pytest

from tests.e2e.kit import A100, World
from tests.e2e.processes import wait_until

H100 = [{"name": "NVIDIA H100 80GB HBM3", "vram_gb": 80, "count": 4}]
SMALL = [{"name": "NVIDIA GeForce RTX 4090", "vram_gb": 24, "count": 2}]


def done(world: World, job_id: str) -> dict[str, Any]:
    return world.becomes(job_id, "completed")


def test_target_worker_goes_only_to_remote_workers(bare_world: World) -> None:
    world = bare_world
    world.local_as_usual = True
    world.start_server(SIMPLETUNER_GPU_INVENTORY=json.dumps(A100))
    local = local_worker(world)
    remote_only = world.submit(world.command("true"), target="worker")
    assert world.job(remote_only)["status"] == "queued"
    assert world.explain(remote_only)["code"] == "NO_WORKERS"
    remote = world.start_worker("remote", becomes=None)
    assert done(world, remote_only)["worker_id"] == remote.id != local["id"]


def test_target_local_runs_on_the_orchestrators_own_gpus(bare_world: World) -> None:
    world = bare_world
    world.local_as_usual = True
    world.start_server(SIMPLETUNER_GPU_INVENTORY=json.dumps(A100))
    world.start_worker("remote")
    local = local_worker(world)
    job_id = world.submit(world.command("true"), target="local")
    job = done(world, job_id)
    assert job["worker_id"] == local["id"]
    assert job["gpus"] == [gpu["uuid"] for gpu in local["gpus"]]
    assert world.submitted(world.command("true"), target="local", gpus=2)["explain"]["code"] == "LOCAL_NO_GPU"
    world.runs(world.submit(world.ticking(world.gate()), target="local"))
    assert world.submitted(world.command("true"), target="local")["explain"]["code"] == "LOCAL_GPU_BUSY"


def test_target_auto_prefers_a_worker_and_falls_back_to_local(bare_world: World) -> None:
    world = bare_world
    world.local_as_usual = True
    world.start_server(SIMPLETUNER_GPU_INVENTORY=json.dumps(A100))
    local = local_worker(world)
    remote = world.start_worker("remote")
    gates = [world.gate() for _ in range(3)]
    first = world.submit(world.ticking(gates[0]), target="auto")
    world.runs(first)
    second = world.submit(world.ticking(gates[1]), target="auto")
    world.runs(second)
    assert world.job(first)["worker_id"] == remote.id
    assert world.job(second)["worker_id"] == local["id"]
    third = world.submit(world.ticking(gates[2]), target="auto")
    assert world.job(third)["status"] == "queued"
    gates[1].write_text("0")
    world.runs(third)
    assert world.job(third)["worker_id"] == local["id"], "whichever frees first"


def test_the_local_agent_survives_a_killed_server_with_its_job(bare_world: World) -> None:
    world = bare_world
    world.local_as_usual = True
    world.start_server(SIMPLETUNER_GPU_INVENTORY=json.dumps(A100))
    local_worker(world)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate), target="local")
    trainer = world.runs(job_id)
    world.kill_server()
    world.goes_on(job_id)
    world.restart_server()
    world.goes_on(job_id)
    gate.write_text("0")
    assert done(world, job_id)["attempt"] == 1
    assert [run.pid for run in world.journal.runs(job_id)] == [trainer]


def test_local_jobs_are_off_beyond_a_loopback_bind(bare_world: World) -> None:
    world = bare_world
    world.local_as_usual = True
    world.start_server("--host", "0.0.0.0", SIMPLETUNER_GPU_INVENTORY=json.dumps(A100))
    answer = world.call("POST", "/api/queue/submit", {"config": world.command("true"), "target": "local"})
    answer_body = answer.json()
    assert answer.status_code >= 400 or answer_body["explain"]["code"] == "LOCAL_NO_GPU", answer_body
    assert world.get("/api/admin/workers")["workers"] == []


def local_worker(world: World) -> dict[str, Any]:
    def idle_local_worker() -> dict[str, Any] | None:
        workers = world.get("/api/admin/workers?local=true")["workers"]
        return next((worker for worker in workers if worker["local"] and worker["status"] == "idle"), None)

    worker = wait_until(idle_local_worker, "the local worker is idle")
    assert worker
    return worker


def test_labels_match_by_glob_and_in_any_case(world: World) -> None:
    a100 = world.start_worker("a", labels={"gpu_type": "a100-80g", "team": "nlp"})
    h100 = world.start_worker("h", labels={"gpu_type": "h100", "team": "vision"})
    for labels, expected in (
        ({"gpu_type": "a100*"}, a100),
        ({"gpu_type": "H100"}, h100),
        ({"team": "nlp"}, a100),
        ({"team": "vis*", "gpu_type": "?100"}, h100),
    ):
        assert (
            done(world, world.submit(world.command("true"), worker_labels=labels))["worker_id"] == expected.id
        )
    nobody = world.submit(world.command("true"), worker_labels={"team": "nlp", "gpu_type": "h100"})
    assert world.explain(nobody)["code"] == "LABELS_MATCH_NONE"


def test_what_the_admin_labelled_no_worker_can_change(world: World) -> None:
    worker = world.start_worker(
        "liar", "--label", "team=secret", "--label", "rack=7", labels={"team": "public"}
    )
    assert worker.seen["labels"] == {"team": "public"}
    assert worker.seen["effective_labels"]["team"] == "public"
    assert worker.seen["effective_labels"]["rack"] == "7", "it may fill in what the admin left out"
    assert worker.seen["reported_labels"]["gpu_type"].startswith("a100")
    secret = world.submit(world.command("true"), worker_labels={"team": "secret"})
    assert world.job(secret)["status"] == "queued"
    done(world, world.submit(world.command("true"), worker_labels={"team": "public", "rack": "7"}))


@pytest.mark.parametrize("key", ["num_processes", "--num_processes"])
def test_the_gpu_count_comes_from_the_configs_number_of_processes(world: World, key: str) -> None:
    small = world.start_worker("one-gpu")
    large = world.start_worker("four-gpus", gpus=H100)
    config = world.command("true")
    config["settings"][key] = 3
    job = done(world, world.submit(config))
    assert (job["worker_id"], len(job["gpus"])) == (large.id, 3)
    config["settings"][key] = 1
    assert done(world, world.submit(config))["worker_id"] == small.id, "the tightest fit"
    config["settings"][key] = 8
    answer = world.submitted(config)
    assert answer["status"] == "queued"
    assert answer["explain"]["code"] == "GPU_COUNT_TOO_LARGE"
    assert any("--num_processes" in step for step in answer["explain"]["fixes"])


def test_a_worker_registers_with_its_gpu_capabilities(world: World) -> None:
    worker = world.start_worker("capable", gpus=[{**A100[0], "count": 2, "accelerator_type": "cuda"}])
    seen = worker.seen
    assert (seen["gpu_count"], seen["gpu_name"]) == (2, "NVIDIA A100-SXM4-80GB")
    assert (seen["gpu_vram_gb"], seen["accelerator_type"]) == (80, "cuda")
    assert len({gpu["uuid"] for gpu in seen["gpus"]}) == 2


@pytest.fixture
def mixed(world: World) -> World:
    """One small worker that is busy, one that drains, one that is offline; nothing is free."""
    busy = world.start_worker("busy", gpus=SMALL, labels={"is": "busy"})
    world.runs(world.submit(world.ticking(world.gate()), gpus=2))
    assert busy.status == "busy"
    draining = world.start_worker("draining", labels={"is": "draining"})
    world.post(f"/api/admin/workers/{draining.id}/drain")
    world.create_worker("offline", labels={"is": "offline"})
    return world


def test_every_waiting_job_says_why_it_waits(mixed: World) -> None:
    world = mixed
    plain = world.command("true")
    running = world.get("/api/jobs?status=running")["jobs"][0]["id"]
    reasons: list[tuple[str, str, dict[str, Any]]] = [
        ("ALL_MATCHING_BUSY", "wait", {"worker_labels": {"is": "busy"}}),
        ("ALL_MATCHING_DRAINING", "admin", {"worker_labels": {"is": "draining"}}),
        ("LABELS_MATCH_NONE", "change", {"worker_labels": {"is": "unheard-of"}}),
        ("GPU_COUNT_TOO_LARGE", "change", {"gpus": 64}),
        ("VRAM_TOO_SMALL", "change", {"min_vram_gb": 500}),
        ("WRONG_ACCELERATOR", "change", {"accelerator": "tpu"}),
        ("DEPENDENCY", "wait", {"depends_on": [running]}),
    ]
    for code, kind, options in reasons:
        submitted = world.submitted(plain, **options)
        explained = world.explain(submitted["job_id"])
        assert (explained["code"], explained["class"]) == (code, kind), options
        assert explained["sentence"]
        if code != "DEPENDENCY":
            assert explained["funnel"]
            assert submitted["explain"]["code"] == code, "said at once"
    missing = world.submitted({"settings": {"model_type": "lora"}})
    assert missing["explain"]["code"] == "TRAINER_MISSING"
    listed = {job["id"]: job for job in world.get("/api/queue")["jobs"]}
    assert all(job["explain"]["code"] for job in listed.values() if job["status"] == "queued")
    shown = world.cli("jobs", "explain", missing["job_id"])
    assert "no worker can run the trainer 'simpletuner'" in shown.stdout


def test_offline_workers_and_limits_and_backoffs_are_named_as_reasons(bare_world: World) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_RETRY_BACKOFF="30")
    assert world.submitted(world.command("true"))["explain"]["code"] == "NO_WORKERS"
    worker = world.start_worker("only", becomes=None)
    unlucky = world.submit(world.command("false"), retry_on_failure=True, max_retries=5)
    wait_until(lambda: world.explain(unlucky)["code"] == "RETRY_BACKOFF", "the second retry waits")
    world.post("/api/queue/concurrency", {"global_running": 0})
    assert world.submitted(world.command("true"))["explain"]["code"] == "QUOTA_GLOBAL"
    worker.running.kill()
    worker.becomes("offline")
    world.post("/api/queue/concurrency", {"global_running": None})
    assert world.submitted(world.command("true"))["explain"]["code"] == "ALL_MATCHING_OFFLINE"


def test_a_job_that_may_not_wait_is_refused_unless_it_can_start_now(world: World) -> None:
    refused = world.call("POST", "/api/queue/submit", {"config": world.command("true"), "no_wait": True})
    assert (refused.status_code, refused.json()["code"]) == (409, "cannot_be_placed")
    assert world.get("/api/jobs")["jobs"] == []
    asked = world.folder / "config.json"
    asked.write_text(json.dumps(world.command("true")))
    assert world.cli("jobs", "submit", str(asked), "--no-wait").returncode == 9
    world.start_worker("ready")
    done(world, world.submit(world.command("true"), no_wait=True))


def test_a_job_that_cannot_run_now_does_not_hold_up_one_that_can(world: World) -> None:
    world.start_worker("small")
    large = world.submit(world.command("true"), gpus=4, priority="urgent")
    done(world, world.submit(world.command("true")))
    assert world.job(large)["status"] == "queued"
    world.start_worker("large", gpus=H100, becomes=None)
    done(world, large)


def test_a_queued_job_is_dispatched_as_soon_as_a_worker_comes(world: World) -> None:
    job_id = world.submit(world.command("true"))
    assert world.job(job_id)["status"] == "queued"
    worker = world.start_worker("newcomer", becomes=None)
    assert done(world, job_id)["worker_id"] == worker.id


def test_the_same_idempotency_key_submits_once(world: World) -> None:
    body = {"config": world.command("true"), "idempotency_key": "once"}
    first, second = (world.post("/api/queue/submit", body) for _ in range(2))
    assert first["job_id"] == second["job_id"]
    other = {**body, "config": world.command("false")}
    assert world.call("POST", "/api/queue/submit", other).status_code == 409
