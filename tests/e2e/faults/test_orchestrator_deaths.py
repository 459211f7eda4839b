"""The orchestrator is killed in every phase of a job and started again; no worker notices more than a pause."""

import re
import signal
import threading
import time
from datetime import datetime
from functools import partial

import httpx2
import pytest

from tests.e2e.kit import Worker, World
from tests.e2e.processes import Program, alive, wait_until

TIMEOUT_S = 2.0


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_queued_job_survives_the_orchestrators_death_and_runs_once_a_worker_is_there(world: World) -> None:
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.kill_server()
    world.restart_server()
    assert world.job(job_id)["status"] == "queued"
    world.start_worker("late", becomes=None)
    world.runs(job_id)
    gate.write_text("0")
    assert world.becomes(job_id, "completed")["attempt"] == 1


def test_an_offer_survives_the_orchestrators_death_and_is_taken_once(world: World) -> None:
    worker = world.start_worker("slow-to-answer")
    gate = world.gate()
    worker.running.signal(signal.SIGSTOP)
    job_id = world.submit(world.ticking(gate))
    assert world.job(job_id)["status"] == "dispatched"
    world.kill_server()
    world.restart_server()
    worker.running.signal(signal.SIGCONT)
    world.runs(job_id)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert job["losses"] == 0
    assert len(world.journal.assert_one_at_a_time(job_id)) == 1


def test_a_running_job_is_not_disturbed_by_the_orchestrators_death(world: World) -> None:
    worker = world.start_worker("steady")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    world.kill_server()
    world.goes_on(job_id)
    world.restart_server()
    worker.becomes("busy")
    world.goes_on(job_id)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    [run] = world.journal.runs(job_id)
    assert run.pid == trainer
    assert (job["attempt"], job["losses"]) == (1, 0)
    worker.becomes("idle")


def test_a_job_that_finished_while_the_orchestrator_was_away_is_recorded_once(world: World) -> None:
    worker = world.start_worker("finisher")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    world.kill_server()
    gate.write_text("0")
    wait_until(lambda: not alive(trainer), "the trainer has ended")
    world.restart_server()
    job = world.becomes(job_id, "completed")
    assert (job["attempt"], job["losses"]) == (1, 0)
    assert world.events(job_id).count("job.completed") == 1
    assert len(world.journal.runs(job_id)) == 1
    assert f"attempt 1 of {job_id}" in world.call("GET", f"/api/jobs/{job_id}/logs").text
    worker.becomes("idle")


def test_a_finished_job_whose_worker_ends_while_the_orchestrator_is_away_is_told_at_the_next_start(
    world: World,
) -> None:
    worker = world.start_worker("spooler")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    world.kill_server()
    gate.write_text("0")
    worker.running.says("attempt 1 ended (exited, code 0)")
    wait_until(lambda: any((worker.work_dir / "spool").iterdir()), "the report is on the disk")
    worker.running.kill()
    world.restart_server()
    worker.start()
    world.becomes(job_id, "completed")
    assert world.events(job_id).count("job.completed") == 1
    assert len(world.journal.runs(job_id)) == 1


def test_an_orchestrator_that_is_away_longer_than_the_heartbeat_timeout_stops_no_trainer(
    world: World,
) -> None:
    worker = world.start_worker("patient")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    world.kill_server()
    away_since = boottime()

    def ticked_for(seconds: float) -> bool:
        return world.journal.runs(job_id)[-1].last_seen > away_since + seconds

    wait_until(lambda: ticked_for(1.5 * TIMEOUT_S), "the trainer ticks on, alone")
    world.restart_server()
    worker.becomes("busy")
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    [run] = world.journal.runs(job_id)
    assert run.pid == trainer
    assert (job["attempt"], job["losses"]) == (1, 0)


def says_again(log: Program) -> bool:
    return "connected again to" in log.text


def test_workers_reconnect_by_themselves_after_a_restart(world: World) -> None:
    workers = [world.start_worker("persistent"), world.start_worker("ephemeral", persistent=False)]
    registered = [worker.seen["registered_at"] for worker in workers]
    world.kill_server()
    world.restart_server()
    for worker, before in zip(workers, registered, strict=True):
        wait_until(partial(registered_since, worker, before), f"{worker.name} registers again")
        worker.becomes("idle")
        log = worker.running
        wait_until(partial(says_again, log), f"{worker.name} says so")
        assert log.text.count(f"connected to {world.url} as '{worker.name}'; waiting for jobs") == 1
        assert re.search(rf"connected again to {world.url} after \d+ s", log.text)


def test_a_silent_worker_gets_its_full_grace_after_a_restart(world: World) -> None:
    gone = world.start_worker("gone")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    world.kill_server()
    gone.kill_machine(job_id)
    dead_since = boottime()
    wait_until(lambda: boottime() > dead_since + TIMEOUT_S, "it has been silent for a whole timeout")
    restarted_at = time.time()
    world.restart_server()
    assert world.job(job_id)["status"] == "running", "nobody could have been heard yet"
    gone.becomes("offline")
    lost = next(
        event
        for event in world.get(f"/api/jobs/{job_id}/events")["events"]
        if event["event_type"] == "job.lost"
    )
    assert seconds_since_1970(lost["at"]) - restarted_at >= TIMEOUT_S
    world.start_worker("next", becomes=None)
    world.runs(job_id, times=2)
    gate.write_text("0")
    world.becomes(job_id, "completed")


def registered_since(worker: Worker, before: str) -> bool:
    return bool(worker.seen["registered_at"] > before)


def seconds_since_1970(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_every_answered_submission_survives_a_kill_in_the_middle_of_many(world: World) -> None:
    answered: list[str] = []

    def submit_until_it_dies() -> None:
        while True:
            try:
                answered.append(world.submit(world.command("true"), target="worker"))
            except httpx2.TransportError:
                return

    submitting = threading.Thread(target=submit_until_it_dies)
    submitting.start()
    wait_until(lambda: len(answered) > 20, "some were answered")
    world.kill_server()
    submitting.join()
    world.restart_server()
    for job_id in answered:
        assert world.job(job_id)["status"] == "queued"


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_within_a_second_though_streams_are_open(
    world: World, signal_number: signal.Signals
) -> None:
    worker = world.start_worker("listener")
    job_id = world.submit(world.ticking(world.gate()))
    world.runs(job_id)
    headers = {"authorization": f"Bearer {world.admin_token}"}
    took_s = []
    for _ in range(3):
        with (
            world.client.stream("GET", f"{world.url}/api/events", headers=headers),
            world.client.stream("GET", f"{world.url}/api/jobs/{job_id}/logs?follow=1", headers=headers),
        ):
            asked_at = time.monotonic()
            world.orchestrator.signal(signal_number)
            assert world.orchestrator.wait() == 0
            took_s.append(time.monotonic() - asked_at)
        if took_s[-1] < 1.0:
            break
        world.restart_server()
        worker.becomes("busy")
    assert min(took_s) < 1.0, took_s
    world.goes_on(job_id)
