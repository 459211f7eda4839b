"""Real training on real workers: whatever dies on the way, the job goes on from its newest checkpoint."""

import hashlib
import io
import json
import os
import random
import signal
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simpletuner_fleet.agent.guard.orphans import processes_of
from tests.e2e.kit import Json, Worker, World
from tests.e2e.processes import PATIENCE_S, shim_of, wait_until
from tests.e2e.proxy import Proxy

STEPS = 120
TRAINING: dict[str, Any] = {
    "max_train_steps": STEPS,
    "train_batch_size": 8,
    "checkpointing_steps": 20,
    "checkpoints_total_limit": 2,
    "validation_steps": 0,
    "num_eval_images": 4,
    "demo_device": "cpu",
    "demo_step_delay_s": 0.04,
}
LONG = 120.0
WEIGHTS_BYTES = 24_000_000
SAVES_ONCE = f"""
import hashlib, os, pathlib, time
found = os.environ.get("SIMPLETUNER_RESUME_FROM")
if found:
    print("resumed with", hashlib.sha256((pathlib.Path(found) / "weights").read_bytes()).hexdigest())
    raise SystemExit(0)
folder = pathlib.Path(os.environ["SIMPLETUNER_OUTPUT_DIR"]) / "checkpoint-7"
folder.mkdir()
(folder / "weights").write_bytes(os.urandom({WEIGHTS_BYTES}))
(folder / ".guard").touch()
time.sleep(600)
"""


def demo(**settings: Any) -> Json:
    return {"trainer": "demo", "settings": {**TRAINING, **settings}}


def attempt_folder(worker: Worker, attempt: Json) -> Path:
    return worker.work_dir / "attempts" / str(attempt["id"])


def steps_of(worker: Worker, attempt: Json) -> list[int]:
    try:
        lines = (
            (attempt_folder(worker, attempt) / "job" / "output" / "metrics.jsonl").read_bytes().splitlines()
        )
    except FileNotFoundError:
        return []
    return [json.loads(line)["step"] for line in lines if line.endswith(b"}")]


def stored_step(world: World, job_id: str, at_least: int) -> int:
    """Waits until the orchestrator has a checkpoint of this step or a later one."""

    def look() -> int:
        return int(world.job(job_id)["checkpoint_step"] or 0)

    wait_until(lambda: look() >= at_least, f"{job_id} has stored step {at_least}", LONG)
    return look()


def kill_machine(worker: Worker, attempt: Json) -> None:
    """Agent, shim and trainer at once: nobody is left to report."""
    trainers = processes_of(attempt["id"])
    shims = {shim_of(pid) for pid in trainers} - set(trainers)
    worker.running.signal(signal.SIGKILL)
    for pid in (*shims, *trainers):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    worker.running.wait()


def assert_joined(world: World, job_id: str, first: Worker, second: Worker) -> int:
    """The two attempts together did every step, and none again that was safe. Gives the step they joined at."""
    before, after = world.attempts(job_id)
    joined = int(after["resumed_from_step"])
    assert steps_of(second, after) == list(range(joined + 1, STEPS + 1))
    assert steps_of(first, before)[:joined] == list(range(1, joined + 1))
    return joined


def test_a_machine_dies_half_way_and_another_finishes_from_the_newest_checkpoint(world: World) -> None:
    first = world.start_worker("first")
    job_id = world.submit(demo())
    stored_step(world, job_id, at_least=40)
    second = world.start_worker("second")
    kill_machine(first, world.attempts(job_id)[0])
    safe = int(world.job(job_id)["checkpoint_step"])
    job = world.becomes(job_id, "completed", LONG)
    assert assert_joined(world, job_id, first, second) == safe
    assert f"resumed from step {safe}" in job["resumed"].replace(",", "")
    assert job["checkpoint_step"] == STEPS
    model = named(world, job_id, "model")
    assert {file["path"] for file in model["files"]} == {"model.npz", "model.json"}
    trained = attempt_folder(second, world.attempts(job_id)[1]) / "job" / "output" / "model.npz"
    assert unpacked(world, job_id, model)["model.npz"] == trained.read_bytes()
    assert [file["path"] for file in named(world, job_id, "samples")["files"]] == ["samples.png"]


def named(world: World, job_id: str, name: str) -> Json:
    manifests = world.get(f"/api/jobs/{job_id}/artifacts")["manifests"]
    return dict(next(manifest for manifest in manifests if manifest["name"] == name))


def unpacked(world: World, job_id: str, manifest: Json) -> dict[str, bytes]:
    answer = world.call("GET", f"/api/jobs/{job_id}/artifacts/{manifest['id']}/archive")
    assert answer.status_code == 200, answer.text
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        files = {member.name.rpartition("/")[2]: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in files.items() if file}


def test_an_orchestrator_that_dies_while_checkpoints_are_made_gets_them_when_it_is_back(
    bare_world: World,
) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_HEARTBEAT_INTERVAL="1", SIMPLETUNER_HEARTBEAT_TIMEOUT="60")
    worker = world.start_worker("steady")
    job_id = world.submit(demo())
    stored_step(world, job_id, at_least=20)
    attempt = world.attempts(job_id)[0]
    world.kill_server()
    model = attempt_folder(worker, attempt) / "job" / "output" / "model.npz"
    wait_until(model.exists, "training goes on to its end while nobody listens", LONG)
    world.restart_server()
    job = world.becomes(job_id, "completed", LONG)
    assert (job["checkpoint_step"], job["attempt"]) == (STEPS, 1)
    assert steps_of(worker, attempt) == list(range(1, STEPS + 1))
    assert unpacked(world, job_id, named(world, job_id, "model"))["model.npz"] == model.read_bytes()


def test_a_worker_that_is_told_to_go_saves_first_and_the_next_goes_on_from_there(world: World) -> None:
    first = world.start_worker("first")
    job_id = world.submit(demo(checkpointing_steps=0))
    wait_until(
        lambda: (
            any(step > 30 for step in steps_of(first, world.attempts(job_id)[0])) or None
            if world.attempts(job_id)
            else None
        ),
        "it trains",
        LONG,
    )
    second = world.start_worker("second")
    first.running.signal(signal.SIGTERM)
    assert first.running.wait(PATIENCE_S) == 0
    world.becomes(job_id, "completed", LONG)
    assert assert_joined(world, job_id, first, second) > 30
    before, after = world.attempts(job_id)
    assert (before["outcome"], after["outcome"]) == ("released", "completed")
    assert (attempt_folder(first, before) / "job" / "signals.json").exists(), (
        "it was asked to save before it was stopped"
    )
    assert world.job(job_id)["losses"] == 0


def test_a_checkpoint_whose_way_is_cut_at_random_bytes_arrives_whole_in_both_directions(
    bare_world: World,
) -> None:
    world, chance = bare_world, random.Random(11)
    world.start_server(SIMPLETUNER_HEARTBEAT_TIMEOUT="6")
    with Proxy(world.port) as network:
        first = world.start_worker("first", url=network.url)
        network.delay(0.002)
        job_id = world.submit(world.command(sys.executable, "-c", SAVES_ONCE))
        cut_parts(network, chance, 3)
        cut_until(network, chance, lambda: world.job(job_id)["checkpoint_step"] == 7)
        attempt = world.attempts(job_id)[0]
        made = attempt_folder(first, attempt) / "job" / "output" / "checkpoint-7" / "weights"
        digest = hashlib.sha256(made.read_bytes()).hexdigest()
        kill_machine(first, attempt)
        second = world.start_worker("second", url=network.url)
        cut_until(network, chance, lambda: world.job(job_id)["status"] == "completed")
        network.heal()
    fetched = (
        attempt_folder(second, world.attempts(job_id)[-1]) / "job" / "output" / "checkpoint-7" / "weights"
    )
    assert hashlib.sha256(fetched.read_bytes()).hexdigest() == digest
    assert f"resumed with {digest}" in (fetched.parents[3] / "output.log").read_text()
    parts = [line for line in network.requests if line.startswith("PUT") and digest in line]
    assert len(parts) > 3, "more parts than a good network needs"


def cut_parts(network: Proxy, chance: random.Random, times: int) -> None:
    """So many parts of a file die on their way."""

    def parts() -> int:
        return sum(line.startswith("PUT") and "/objects/" in line for line in network.requests)

    for _ in range(times):
        before = parts()
        wait_until(lambda before=before: parts() > before, "another part")  # type: ignore[misc]
        time.sleep(chance.uniform(0.0, 0.01))
        network.reset()


def cut_until(network: Proxy, chance: random.Random, done: Callable[[], bool]) -> None:
    """Every connection there is dies now and then, wherever it is."""
    give_up_at = time.monotonic() + LONG
    while not done():
        assert time.monotonic() < give_up_at
        time.sleep(chance.uniform(0.3, 1.2))
        network.reset()


def test_results_that_a_dead_agent_could_not_send_are_sent_by_the_next(bare_world: World) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_HEARTBEAT_TIMEOUT="60")
    worker = world.start_worker("slow", "--upload-limit-mbps", "2")
    makes = (
        "import os; open(os.environ['SIMPLETUNER_OUTPUT_DIR'] + '/model', 'wb').write(os.urandom(3_000_000))"
    )
    job_id = world.submit(world.command(sys.executable, "-c", makes))
    attempt = wait_until(lambda: world.attempts(job_id), "it is begun")[0]
    ended = attempt_folder(worker, attempt) / "exit.json"
    wait_until(ended.exists, "its trainer has ended")
    assert world.job(job_id)["status"] == "running", "the report waits for what was made"
    worker.running.kill()
    trouble = "the worker's agent has died"
    wait_until(
        lambda: trouble in str((world.job(job_id)["progress"] or {}).get("waiting_for")), "its guardian tells"
    )
    assert world.job(job_id)["status"] == "running", "nothing is stored yet"
    assert world.get(f"/api/jobs/{job_id}/artifacts")["manifests"] == []
    worker.arguments = worker.arguments[: worker.arguments.index("--upload-limit-mbps")]
    worker.start()
    assert world.becomes(job_id, "completed")["results"] == "stored"
    manifests = world.get(f"/api/jobs/{job_id}/artifacts")["manifests"]
    assert [(one["name"], one["total_bytes"]) for one in manifests] == [("output", 3_000_000)]
    wait_until((ended.parent / "delivered").exists, "it is not thought of again")
