"""Heartbeats, offers and timeouts: what happens when, as the server sees it."""

import sys
import threading
import time
from datetime import UTC, datetime

from tests.e2e.kit import Worker, World, watching
from tests.e2e.processes import wait_until

FLOOD = """
import sys
line = b"x" * 1023 + b"\\n"
for _ in range(100 * 1024):
    sys.stdout.buffer.write(line)
"""
RHYTHM = {"SIMPLETUNER_HEARTBEAT_INTERVAL": "0.2", "SIMPLETUNER_HEARTBEAT_TIMEOUT": "8"}
TIMEOUT_S, HEALTH_CHECK_S = 2.0, 0.25
LATE_S = 4.0
"""Twenty heartbeats missed; on an idle machine the oldest is well under a second."""


def heartbeat_age_s(worker: Worker) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(worker.seen["last_heartbeat"])).total_seconds()


def test_a_trainer_that_prints_a_hundred_megabytes_disturbs_no_heartbeat(bare_world: World) -> None:
    world = bare_world
    world.start_server(**RHYTHM)
    worker = world.start_worker("flooded")
    job_id = world.submit(world.command(sys.executable, "-c", FLOOD))
    with watching(lambda: heartbeat_age_s(worker)) as ages:
        world.becomes(job_id, "completed", within_s=90)
    assert max(ages) < LATE_S
    tail = world.call("GET", f"/api/jobs/{job_id}/logs?tail=2").text
    assert "x" * 1000 in tail
    assert world.job(job_id)["losses"] == 0


def test_a_silent_trainer_disturbs_no_heartbeat(bare_world: World) -> None:
    world = bare_world
    world.start_server(**RHYTHM)
    worker = world.start_worker("silent")
    gate = world.folder / "gate"
    silent = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)"
    job_id = world.submit(world.command(sys.executable, "-c", silent))
    world.becomes(job_id, "running")
    beats: set[str] = set()

    def look() -> float:
        beats.add(worker.seen["last_heartbeat"])
        return heartbeat_age_s(worker)

    with watching(look) as ages:
        wait_until(lambda: len(beats) >= 5, "it beats on")
    assert max(ages) < LATE_S
    gate.touch()
    world.becomes(job_id, "completed")


def test_an_offer_nobody_accepts_comes_back_and_charges_nothing(bare_world: World) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_OFFER_TIMEOUT="1")
    with silent_listener(world, "never-answers"):
        began = time.monotonic()
        job_id = world.submit(world.command("true"))
        assert world.job(job_id)["status"] == "dispatched"
        worker = world.start_worker("answers", becomes=None)
        job = world.becomes(job_id, "completed")
        assert time.monotonic() - began < 15.0
    assert job["worker_id"] == worker.id
    assert (job["losses"], job["failures"]) == (0, 0)
    assert world.attempts(job_id)[0]["outcome"] == "expired_offer"


class silent_listener:
    """A worker that registers, listens and beats, and never accepts anything."""

    def __init__(self, world: World, name: str) -> None:
        created = world.post("/api/admin/workers", {"name": name})
        self._world = world
        self._id = created["worker_id"]
        self._headers = {"x-worker-token": created["token"]}
        self._over = threading.Event()
        self._listening = threading.Thread(target=self._listen)

    def __enter__(self) -> None:
        gpus = [{"index": 0, "uuid": "GPU-1", "name": "NVIDIA A100", "vram_gb": 80.0}]
        register = {"persistent": True, "gpu_count": 1, "gpus": gpus, "trainers": ["command"], "attempts": []}
        self._call("register", register)
        self._listening.start()
        wait_until(
            lambda: self._world.get(f"/api/admin/workers/{self._id}")["status"] == "idle", "it is idle"
        )

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._listening.join()

    def _call(self, what: str, body: dict[str, object]) -> None:
        url = f"{self._world.url}/api/workers/{what}"
        self._world.client.post(url, json=body, headers=self._headers).raise_for_status()

    def _listen(self) -> None:
        url = f"{self._world.url}/api/workers/stream"
        with self._world.client.stream("GET", url, headers=self._headers) as stream:
            for _ in stream.iter_raw():
                if self._over.is_set():
                    return
                self._call("heartbeat", {"attempts": []})


def test_a_worker_is_offline_a_timeout_after_it_fell_silent_give_or_take_a_health_check(world: World) -> None:
    worker = world.start_worker("silenced")
    heard = datetime.fromisoformat(worker.seen["last_heartbeat"])
    worker.running.kill()
    seen = worker.becomes("offline").seen
    silent_s = (datetime.fromisoformat(seen["offline_since"]) - heard).total_seconds()
    assert silent_s >= TIMEOUT_S - HEALTH_CHECK_S
    assert world.get(f"/api/audit?event_type=worker.status_changed&target_id={worker.id}")["entries"]


def test_the_heartbeat_timeout_is_set_by_its_variable(bare_world: World) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_HEARTBEAT_TIMEOUT="60")
    worker = world.start_worker("unreliable-network")
    headers = {"x-worker-token": worker.token}
    answer = world.client.post(f"{world.url}/api/workers/heartbeat", json={}, headers=headers).json()
    assert (answer["heartbeat_interval_s"], answer["heartbeat_timeout_s"]) == (0.2, 60.0)


def test_the_documented_intervals_are_the_defaults(bare_world: World) -> None:
    world = bare_world
    world.settings.clear()
    world.start_server()
    created = world.post("/api/admin/workers", {"name": "by-default"})
    register = {"trainers": ["command"], "attempts": [], "gpu_count": 0}
    headers = {"x-worker-token": created["token"]}
    answer = world.client.post(f"{world.url}/api/workers/register", json=register, headers=headers).json()
    assert (answer["heartbeat_interval_s"], answer["heartbeat_timeout_s"]) == (30.0, 120.0)
    job_id = world.submit(world.command("true"))
    assert world.job(job_id)["max_retries"] == 3


def test_a_worker_sends_its_heartbeats_in_the_rhythm_it_is_told(bare_world: World) -> None:
    world = bare_world
    world.start_server(**RHYTHM)
    worker = world.start_worker("metronome")
    beats: set[str] = set()

    def another() -> bool:
        beats.add(worker.seen["last_heartbeat"])
        return len(beats) >= 4

    began = time.monotonic()
    wait_until(another, "four heartbeats")
    assert time.monotonic() - began >= 0.2
