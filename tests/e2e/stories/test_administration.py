"""What an administrator does to workers, with real workers at the other end."""

import signal
import threading
import time

import pytest

from tests.e2e.kit import World
from tests.e2e.processes import wait_until

PATIENT = {"SIMPLETUNER_HEARTBEAT_TIMEOUT": "30"}


def test_a_draining_worker_finishes_its_job_and_gets_no_other(world: World) -> None:
    worker = world.start_worker("draining")
    gate, second_gate = world.gate(), world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    world.post(f"/api/admin/workers/{worker.id}/drain", {"note": "new fans"})
    waiting = world.submit(world.ticking(second_gate))
    assert worker.seen["status"] == "draining"
    assert world.explain(waiting)["code"] == "ALL_MATCHING_DRAINING"
    heard = worker.seen["last_heartbeat"]
    wait_until(lambda: worker.seen["last_heartbeat"] > heard, "it goes on sending heartbeats")
    assert worker.status == "draining", "no heartbeat undoes a drain"
    world.goes_on(job_id)
    gate.write_text("0")
    world.becomes(job_id, "completed")
    assert worker.running.alive, "a persistent worker stays"
    assert worker.status == "draining"
    assert world.job(waiting)["status"] == "queued"
    world.post(f"/api/admin/workers/{worker.id}/resume")
    world.runs(waiting)
    assert worker.status == "busy"
    second_gate.write_text("0")
    world.becomes(waiting, "completed")


def test_a_drain_is_idempotent_and_survives_restarts_of_both_ends(world: World) -> None:
    worker = world.start_worker("stubborn")
    for _ in range(2):
        assert world.post(f"/api/admin/workers/{worker.id}/drain")["status"] == "draining"
    world.kill_server()
    world.restart_server()
    worker.becomes("draining")
    worker.running.signal(signal.SIGTERM)
    assert worker.running.wait() == 0
    worker.becomes("offline")
    worker.start()
    worker.becomes("draining")
    job_id = world.submit(world.command("true"))
    assert world.job(job_id)["status"] == "queued"
    entries = world.get("/api/audit?event_type=worker.drained")["entries"]
    assert len(entries) == 1


def test_a_draining_ephemeral_worker_leaves_after_its_job(world: World) -> None:
    worker = world.start_worker("spot", persistent=False)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    world.post(f"/api/admin/workers/{worker.id}/drain")
    world.goes_on(job_id)
    gate.write_text("0")
    world.becomes(job_id, "completed")
    assert worker.running.wait() == 0
    worker.becomes("offline")


def test_an_idle_ephemeral_worker_leaves_as_soon_as_it_is_drained(world: World) -> None:
    worker = world.start_worker("spot", persistent=False)
    world.post(f"/api/admin/workers/{worker.id}/drain")
    assert worker.running.wait() == 0
    worker.becomes("offline")


def test_an_ephemeral_worker_shuts_down_after_its_job_and_is_cleaned_up(bare_world: World) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_EPHEMERAL_TTL="1")
    stays = world.start_worker("stays")
    world.post(f"/api/admin/workers/{stays.id}/drain")
    worker = world.start_worker("spot", persistent=False)
    assert worker.seen["worker_type"] == "ephemeral"
    job_id = world.submit(world.command("true"))
    world.becomes(job_id, "completed")
    assert worker.running.wait() == 0
    wait_until(
        lambda: world.call("GET", f"/api/admin/workers/{worker.id}").status_code == 404, "it is cleaned up"
    )
    assert stays.status == "draining"
    cleaned = world.get("/api/audit?event_type=worker.cleaned_up")["entries"]
    assert [entry["target_id"] for entry in cleaned] == [worker.id]


def test_an_offline_persistent_worker_is_never_cleaned_up(bare_world: World) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_EPHEMERAL_TTL="0.5")
    kept = world.start_worker("on-prem")
    spot = world.start_worker("spot", persistent=False)
    for worker in (kept, spot):
        worker.running.signal(signal.SIGTERM)
        worker.running.wait()
    wait_until(lambda: world.call("GET", f"/api/admin/workers/{spot.id}").status_code == 404, "spot is gone")
    assert kept.status == "offline"


def test_a_persistent_worker_stays_and_takes_the_next_job(world: World) -> None:
    worker = world.start_worker("persistent")
    for _ in range(3):
        job_id = world.submit(world.command("true"))
        assert world.becomes(job_id, "completed")["worker_id"] == worker.id
    assert worker.running.alive
    assert worker.becomes("idle").seen["worker_type"] == "persistent"


@pytest.mark.parametrize("way", ["token file", "SIGHUP"])
def test_a_token_rotated_in_the_middle_of_a_job_costs_neither_trainer_nor_job(
    bare_world: World, way: str
) -> None:
    world = bare_world
    world.start_server(**PATIENT)
    created = world.post("/api/admin/workers", {"name": "rotated"})
    worker = world.worker_of(created)
    token_file = world.folder / "token"
    words = ["--orchestrator-url", world.url, "--persistent", "--work-dir", str(worker.work_dir)]
    if way == "token file":
        del worker.environment["SIMPLETUNER_WORKER_TOKEN"]
        token_file.write_text(worker.token)
        words += ["--worker-token-file", str(token_file)]
    worker.start(*words)
    worker.becomes("idle")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    fresh = world.post(f"/api/admin/workers/{worker.id}/token")["token"]
    old = {"x-worker-token": worker.token}
    assert world.client.post(f"{world.url}/api/workers/heartbeat", json={}, headers=old).status_code == 401
    worker.running.says("Invalid token")
    world.goes_on(job_id)
    if way == "token file":
        token_file.write_text(fresh + "\n")
    else:
        (worker.work_dir / "worker_token").write_text(fresh)
        worker.running.signal(signal.SIGHUP)
    new = worker.seen["registered_at"]
    wait_until(lambda: worker.seen["registered_at"] > new, "it registers with the new token")
    world.goes_on(job_id)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert [run.pid for run in world.journal.runs(job_id)] == [trainer]
    assert (job["attempt"], job["losses"]) == (1, 0)
    worker.becomes("idle")


def test_a_rotated_tokens_stream_is_cut_within_a_second(world: World) -> None:
    created = world.post("/api/admin/workers", {"name": "listening"})
    headers = {"x-worker-token": created["token"]}
    register = {"name": "listening", "gpu_count": 0, "trainers": [], "attempts": []}
    world.client.post(f"{world.url}/api/workers/register", json=register, headers=headers).raise_for_status()
    ended_at: list[float] = []
    opened = threading.Event()

    def listen() -> None:
        with world.client.stream("GET", f"{world.url}/api/workers/stream", headers=headers) as stream:
            opened.set()
            for _ in stream.iter_raw():
                pass
        ended_at.append(time.monotonic())

    listener = threading.Thread(target=listen)
    listener.start()
    assert opened.wait(30)
    world.post(f"/api/admin/workers/{created['worker_id']}/token")
    rotated_at = time.monotonic()
    listener.join(30)
    assert ended_at[0] - rotated_at < 1.0


def test_only_an_offline_worker_can_be_deleted(world: World) -> None:
    worker = world.start_worker("deleted")
    gate = world.gate()
    refused = world.call("DELETE", f"/api/admin/workers/{worker.id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "worker_not_offline")
    assert "idle" in refused.json()["detail"]
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    assert "busy" in world.call("DELETE", f"/api/admin/workers/{worker.id}").json()["detail"]
    world.post(f"/api/admin/workers/{worker.id}/drain")
    assert "draining" in world.call("DELETE", f"/api/admin/workers/{worker.id}").json()["detail"]
    gate.write_text("0")
    world.becomes(job_id, "completed")
    worker.running.signal(signal.SIGTERM)
    worker.running.wait()
    worker.becomes("offline")
    assert world.call("DELETE", f"/api/admin/workers/{worker.id}").status_code == 200
    assert world.call("GET", f"/api/admin/workers/{worker.id}").status_code == 404
    headers = {"x-worker-token": worker.token}
    gone = world.client.post(f"{world.url}/api/workers/register", json={}, headers=headers)
    assert gone.status_code == 401


def test_names_are_unique_among_living_workers(world: World) -> None:
    first = world.create_worker("gpu-worker-1")
    taken = world.call("POST", "/api/admin/workers", {"name": "gpu-worker-1"})
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    world.call("DELETE", f"/api/admin/workers/{first.id}")
    assert world.create_worker("gpu-worker-1").id != first.id


def test_a_token_is_shown_once_and_stored_only_as_its_hash(world: World) -> None:
    worker = world.start_worker("secretive")
    for path in (f"/api/admin/workers/{worker.id}", "/api/admin/workers", "/api/audit?limit=500"):
        assert worker.token not in world.call("GET", path).text
    for file in world.home.rglob("*"):
        if file.is_file():
            assert worker.token.encode() not in file.read_bytes(), file
    for program in world.programs:
        assert worker.token not in program.text
    rotated = world.post(f"/api/admin/workers/{worker.id}/token")
    assert rotated["token"] != worker.token


def test_two_agents_with_one_token_do_not_share_a_worker(world: World) -> None:
    worker = world.start_worker("original")
    clone = world.start(
        *("clone", "worker", "--orchestrator-url", world.url, "--persistent", "--name", "original"),
        *("--work-dir", str(world.folder / "clone")),
        **worker.environment,
    )
    assert worker.running.wait() == 5
    assert "superseded" in worker.running.text
    assert "E_SUPERSEDED" in worker.running.text
    assert "next: give each machine a worker and a token of its own" in worker.running.text
    job_id = world.submit(world.command("true"))
    world.becomes(job_id, "completed")
    assert clone.alive


def test_a_second_agent_in_the_same_folder_is_refused_and_the_first_stays(world: World) -> None:
    worker = world.start_worker("first")
    second = world.start("second", "worker", *worker.arguments, **worker.environment)
    assert second.wait() != 0
    assert "next:" in second.text
    assert worker.status == "idle"
    assert worker.running.alive


def test_a_worker_without_gpus_joins_says_so_and_runs_jobs_that_need_none(world: World) -> None:
    worker = world.start_worker("cpu-only", gpus=[])
    worker.running.says("no GPU was found")
    assert worker.seen["gpu_count"] == 0
    needs_one = world.submit(world.command("true"))
    needs_none = world.submit(world.command("true", resources={"gpus": 0}))
    assert world.becomes(needs_none, "completed")["gpus"] == []
    assert world.explain(needs_one)["code"] == "GPU_COUNT_TOO_LARGE"
