"""Workers die in every way there is; their jobs do not."""

import os
import signal
import sys
import time

import pytest

from tests.e2e.jobs.test_logs import log_of
from tests.e2e.kit import World
from tests.e2e.processes import alive, stopped, wait_until
from tests.e2e.storage.test_checkpoints import named, unpacked

LONG = {"SIMPLETUNER_HEARTBEAT_INTERVAL": "5", "SIMPLETUNER_HEARTBEAT_TIMEOUT": "60"}


def test_a_worker_killed_outright_is_reported_by_its_shim_and_its_job_runs_elsewhere_within_five_seconds(
    bare_world: World,
) -> None:
    world = bare_world
    world.start_server(**LONG)
    first = world.start_worker("first")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    world.start_worker("second")
    killed_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    first.running.kill()
    world.runs(job_id, times=2)
    again = world.journal.assert_one_at_a_time(job_id)[1]
    assert again.began - killed_at < 5.0, "it was the shim's report, not the timeout, that set the job free"
    assert not alive(trainer)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert (job["losses"], job["attempt"]) == (1, 2)
    assert [attempt["outcome"] for attempt in world.attempts(job_id)] == ["lost", "completed"]


def test_a_dead_machine_is_noticed_after_the_heartbeat_timeout_and_its_job_goes_to_the_next_worker(
    world: World,
) -> None:
    first = world.start_worker("first")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    second = world.start_worker("second")
    first.kill_machine(job_id)
    first.becomes("offline")
    world.runs(job_id, times=2)
    assert world.job(job_id)["worker_id"] == second.id
    gate.write_text("0")
    world.becomes(job_id, "completed")
    world.journal.assert_one_at_a_time(job_id)
    lost = world.attempts(job_id)[0]
    assert lost["outcome"] == "lost"
    assert "no heartbeat" in lost["error"]
    events = world.events(job_id)
    assert events.index("job.lost") < events.index("job.requeued")


def test_a_job_that_runs_out_of_retries_is_failed_and_says_why(world: World) -> None:
    worker = world.start_worker("mortal")
    job_id = world.submit(world.ticking(world.gate()), max_retries=1)
    for life in (1, 2):
        world.runs(job_id, times=life)
        worker.kill_machine(job_id)
        worker.becomes("offline")
        if life == 1:
            worker.start()
    job = world.becomes(job_id, "failed")
    assert (job["reason"], job["losses"]) == ("retries_exhausted", 2)
    assert "no retries left" in job["error"]
    # On a machine that stands still for seconds one may be given back in between, which costs no retry.
    lost = [one["attempt"] for one in world.attempts(job_id) if one["outcome"] == "lost"]
    assert (len(lost), max(lost)) == (2, job["attempt"])


def test_a_job_that_costs_two_workers_their_life_is_poison(world: World) -> None:
    victims = [world.start_worker("first"), world.start_worker("second")]
    job_id = world.submit(world.ticking(world.gate()))
    for life in (1, 2):
        world.runs(job_id, times=life)
        next(worker for worker in victims if worker.id == world.job(job_id)["worker_id"]).kill_machine(job_id)
    job = world.becomes(job_id, "failed")
    assert job["reason"] == "poison"
    assert "2 different workers" in job["error"]
    bystander = world.start_worker("third")
    assert bystander.status == "idle"


def test_a_worker_killed_and_started_at_once_takes_its_trainer_up_again(bare_world: World) -> None:
    world = bare_world
    world.start_server(**LONG)
    worker = world.start_worker("phoenix", "--restarted-within", "25")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    worker.running.kill()
    worker.start()
    worker.running.says(f"took up job {job_id} again")
    world.goes_on(job_id)
    worker.becomes("busy")
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    [run] = world.journal.runs(job_id)
    assert run.pid == trainer
    assert (job["attempt"], job["losses"]) == (1, 0)
    worker.becomes("idle")


def test_a_worker_that_ends_while_its_trainer_ends_tells_it_once_after_its_return(bare_world: World) -> None:
    world = bare_world
    world.start_server(**LONG)
    worker = world.start_worker("forgetful")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    worker.running.kill()
    gate.write_text("0")
    worker.start()
    world.becomes(job_id, "completed")
    assert not alive(trainer)
    assert world.events(job_id).count("job.completed") == 1
    assert len(world.journal.runs(job_id)) == 1


def test_sigterm_gives_the_job_back_at_once_and_charges_nothing(bare_world: World) -> None:
    world = bare_world
    world.start_server(**LONG)
    first = world.start_worker("leaving")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    second = world.start_worker("staying")
    first.running.signal(signal.SIGTERM)
    assert first.running.wait() == 0
    first.becomes("offline")
    assert not alive(trainer)
    world.runs(job_id, times=2)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert (job["worker_id"], job["losses"], job["failures"]) == (second.id, 0, 0)
    assert [attempt["outcome"] for attempt in world.attempts(job_id)] == ["released", "completed"]
    world.journal.assert_one_at_a_time(job_id)


def test_a_frozen_worker_has_its_trainer_paused_before_the_job_starts_elsewhere(world: World) -> None:
    first = world.start_worker("frozen")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    stale = world.runs(job_id)
    second = world.start_worker("awake")
    first.running.signal(signal.SIGSTOP)
    wait_until(lambda: stopped(stale), "the trainer is paused by its shim")
    world.runs(job_id, times=2)
    assert stopped(stale)
    first.running.signal(signal.SIGCONT)
    wait_until(lambda: not alive(stale), "the stale trainer is gone")
    world.goes_on(job_id)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert job["worker_id"] == second.id
    runs = world.journal.assert_one_at_a_time(job_id)
    assert len(runs) == 2
    first.becomes("idle")
    assert world.events(job_id).count("job.completed") == 1


def test_a_frozen_worker_that_wakes_before_anybody_else_took_its_job_goes_on_with_it(world: World) -> None:
    worker = world.start_worker("sleeper")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    worker.running.signal(signal.SIGSTOP)
    world.becomes(job_id, "queued")
    assert stopped(trainer)
    worker.running.signal(signal.SIGCONT)
    world.becomes(job_id, "running")
    world.goes_on(job_id)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    [run] = world.journal.runs(job_id)
    assert run.pid == trainer
    assert (job["attempt"], job["losses"]) == (1, 0)


PINGS_MISSED_S = 1.5
PRINTS_AND_MAKES = """
import os, pathlib, sys, time
gates = [pathlib.Path(name) for name in sys.argv[1:]]
print("begun", flush=True)
for gate in gates:
    while not gate.exists():
        time.sleep(0.02)
    print("\\n".join(f"{gate.name} {line}" for line in range(1000)), flush=True)
    pathlib.Path(os.environ["SIMPLETUNER_OUTPUT_DIR"], gate.name).write_bytes(bytes(100_000))
"""


@pytest.mark.parametrize("ends", ["asleep", "awake"])
def test_what_a_trainer_made_while_its_worker_was_frozen_arrives_once_its_job_goes_on(
    world: World, ends: str
) -> None:
    worker = world.start_worker("sleeper")
    first, last = world.gate(), world.gate()
    script = (sys.executable, "-I", "-S", "-c", PRINTS_AND_MAKES, str(first), str(last))
    job_id = world.submit(world.command(*script), on_partition="continue")
    wait_until(lambda: log_of(world, job_id) == b"begun\n", "its log begins")
    worker.running.signal(signal.SIGSTOP)
    first.touch()
    if ends == "asleep":
        last.touch()
    world.becomes(job_id, "queued")
    time.sleep(PINGS_MISSED_S)  # so that it has to dial anew, and its log is there before its heartbeat
    worker.running.signal(signal.SIGCONT)
    wait_until(lambda: "job.readopted" in world.events(job_id), "its job goes on")
    last.touch()
    assert world.becomes(job_id, "completed")["results"] == "stored"
    printed = [f"{gate.name} {line}" for gate in (first, last) for line in range(1000)]
    assert log_of(world, job_id).decode().splitlines() == ["begun", *printed]
    assert {first.name, last.name} <= set(unpacked(world, job_id, named(world, job_id, "output")))
    worker.becomes("idle")


def test_a_job_that_ended_while_its_worker_was_frozen_is_told_whole_by_the_next_agent(world: World) -> None:
    worker = world.start_worker("sleeper", "--restarted-within", "25")
    gate = world.gate()
    job_id = world.submit(world.command(sys.executable, "-I", "-S", "-c", PRINTS_AND_MAKES, str(gate)))
    wait_until(lambda: log_of(world, job_id) == b"begun\n", "its log begins")
    worker.running.signal(signal.SIGSTOP)
    gate.touch()
    world.becomes(job_id, "queued")
    worker.running.kill()
    worker.start()
    job = world.becomes(job_id, "completed")
    assert (job["results"], log_of(world, job_id).count(b"\n")) == ("stored", 1001)
    assert gate.name in unpacked(world, job_id, named(world, job_id, "output"))


def test_nothing_a_trainer_has_started_outlives_its_attempt(world: World) -> None:
    worker = world.start_worker("tidy")
    note = world.folder / "daemon"
    script = f"(setsid sh -c 'echo $$ > {note}; exec sleep 600' &) ; exec sleep 600"
    job_id = world.submit(world.command("sh", "-c", script))
    wait_until(lambda: note.exists() and note.read_text().strip(), "the daemon runs")
    daemon = int(note.read_text())
    world.post(f"/api/jobs/{job_id}/cancel")
    world.becomes(job_id, "cancelled")
    assert not alive(daemon)
    worker.becomes("idle")


def test_a_killed_shim_takes_its_trainer_along_and_the_attempt_has_failed(world: World) -> None:
    worker = world.start_worker("unguarded")
    job_id = world.submit(world.ticking(world.gate()))
    trainer = world.runs(job_id)
    os.kill(world.shim_of(job_id), signal.SIGKILL)
    job = world.becomes(job_id, "failed")
    assert not alive(trainer)
    assert "supervisor" in job["error"]
    worker.becomes("idle")
