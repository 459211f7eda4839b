"""Each case of the Troubleshooting chapter, made to happen: what is printed, and how the program ends."""

import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

from devtools.ports import free_port
from simpletuner_fleet.core.people.tokens import checksum
from tests.e2e.kit import World
from tests.e2e.processes import SIMPLETUNER, Program

WELL_FORMED = "wt_" + "0" * 43


def assert_says(program: Program, exit_code: int, *words: str) -> None:
    assert program.wait() == exit_code, program.text
    for word in ("error:", "why:", "next:", "code:", *words):
        assert word in program.text, program.text


def well_formed_token() -> str:
    return WELL_FORMED + checksum(WELL_FORMED)


def at_a_terminal(world: World, *arguments: str) -> str:
    """What a person sees: advice is for whoever is looking, not for pipes."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    screen = subprocess.Popen(
        [SIMPLETUNER, *arguments],
        env={**world.environment, "SIMPLETUNER_HOME": str(world.home), "TERM": "dumb", "COLUMNS": "200"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    assert screen.wait(60) == 0
    os.close(theirs)
    with suppress(OSError):
        shown = b""
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    return " ".join(shown.decode().split())


def test_connection_refused_is_told_with_the_three_things_to_check(bare_world: World) -> None:
    world = bare_world
    url = f"http://127.0.0.1:{free_port()}"
    worker = world.start(
        *("worker", "worker", "--orchestrator-url", url, "--check"),
        SIMPLETUNER_WORKER_TOKEN=well_formed_token(),
    )
    assert_says(
        worker,
        6,
        "connection refused",
        "verify orchestrator URL and port",
        "firewall rules allow inbound connections",
        "running with --host 0.0.0.0",
        "E_CONN_REFUSED",
    )
    assert world.cli("status", "--url", url).returncode == 6


def test_a_worker_started_before_its_orchestrator_says_so_at_once_and_connects_when_it_can(
    bare_world: World,
) -> None:
    world = bare_world
    world.start_server()
    created = world.post("/api/admin/workers", {"name": "early"})
    world.kill_server()
    worker = world.worker_of(created)
    worker.start("--orchestrator-url", world.url, "--work-dir", str(worker.work_dir))
    worker.running.says("E_CONN_REFUSED   the worker keeps trying")
    assert worker.running.alive
    world.restart_server()
    worker.becomes("idle")


def test_a_rotated_token_is_told_as_an_invalid_token(world: World) -> None:
    worker = world.create_worker("rotated")
    world.post(f"/api/admin/workers/{worker.id}/token")
    worker.start("--orchestrator-url", world.url, "--work-dir", str(worker.work_dir))
    assert_says(
        worker.running,
        4,
        "Invalid token",
        "it was rotated, or its worker was deleted",
        "may have been rotated",
        "request a new one",
        "E_INVALID_TOKEN",
    )


def test_whitespace_in_a_token_is_told_as_whitespace(world: World) -> None:
    token = well_formed_token()
    broken = world.start(
        *("broken", "worker", "--orchestrator-url", world.url),
        SIMPLETUNER_WORKER_TOKEN=f"{token[:20]} {token[20:]}",
    )
    assert_says(broken, 4, "whitespace", "check for whitespace in the token string")


def test_whitespace_around_a_token_is_taken_off_and_told(world: World) -> None:
    worker = world.create_worker("pasted")
    worker.environment["SIMPLETUNER_WORKER_TOKEN"] = f" {worker.token}\n"
    worker.start("--orchestrator-url", world.url, "--work-dir", str(worker.work_dir))
    worker.becomes("idle")
    worker.running.says("whitespace around the token was taken off")


def test_a_mistyped_token_is_told_before_anybody_is_asked(bare_world: World) -> None:
    token = well_formed_token()
    mistyped = bare_world.start(
        *("mistyped", "worker", "--orchestrator-url", f"http://127.0.0.1:{free_port()}"),
        SIMPLETUNER_WORKER_TOKEN=token[:-1] + "!",
    )
    assert_says(mistyped, 4, "cut or mistyped")


def test_a_certificate_nobody_vouches_for_is_told_with_every_way_out(bare_world: World) -> None:
    world = bare_world
    world.use_tls()
    world.start_server("--ssl")
    worker = world.create_worker("distrustful")
    worker.start("--orchestrator-url", world.url, "--work-dir", str(worker.work_dir), "--check")
    assert_says(
        worker.running,
        10,
        "certificate verify failed",
        "--ssl-no-verify",
        "development only",
        "add the CA certificate to the system trust store",
        "--ssl-fingerprint",
    )


def test_a_trainer_python_that_is_none_is_told_by_a_check_and_keeps_the_worker_from_starting(
    world: World,
) -> None:
    worker = world.create_worker("mispointed")
    words = ("--orchestrator-url", world.url, "--work-dir", str(worker.work_dir))
    named = ("--trainer-python", "/nonexistent/python")
    for mode in (("--check",), ()):
        worker.start(*words, *named, *mode)
        assert_says(
            worker.running, 1, "there is no file /nonexistent/python", ".venv/bin/python", "E_TRAINER_PYTHON"
        )


def test_a_lost_worker_is_told_with_what_to_look_for(world: World) -> None:
    worker = world.start_worker("lost")
    job_id = world.submit(world.ticking(world.gate()), max_retries=0)
    world.runs(job_id)
    worker.kill_machine(job_id)
    world.becomes(job_id, "failed")
    text = at_a_terminal(world, "jobs", "get", job_id)
    assert "worker lost once" in text
    assert "no heartbeat for" in world.attempts(job_id)[0]["error"]
    for step in (
        "check network stability between worker and orchestrator",
        "look for resource exhaustion (CPU/memory) on the worker",
        "increase SIMPLETUNER_HEARTBEAT_TIMEOUT on the orchestrator if the network is unreliable",
    ):
        assert step in text


def test_a_crashed_trainer_is_told_with_what_to_look_for(world: World) -> None:
    world.start_worker("crashing")
    job_id = world.submit(world.command(sys.executable, "-c", "raise RuntimeError('no CUDA')"))
    world.becomes(job_id, "failed")
    assert "RuntimeError: no CUDA" in world.cli("jobs", "logs", job_id).stdout
    text = at_a_terminal(world, "jobs", "get", job_id)
    for step in (
        "check the worker logs for Python exceptions",
        "verify that the GPU drivers are functioning: nvidia-smi",
        "ensure sufficient disk space for training",
    ):
        assert step in text


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"gpus": 9}, ("adjust --num_processes in the training config",)),
        ({"worker_labels": {"team": "none"}}, ("check for label mismatch between job and workers",)),
        ({}, ("check worker status", "verify workers are connected and IDLE")),
    ],
)
def test_a_job_that_is_not_dispatched_says_what_to_check(
    world: World, options: dict[str, object], steps: tuple[str, ...]
) -> None:
    world.start_worker("busy")
    world.runs(world.submit(world.ticking(world.gate())))
    job_id = world.submit(world.command("true"), **options)
    text = at_a_terminal(world, "jobs", "get", job_id)
    for step in steps:
        assert step in text


def test_the_doctor_looks_at_drivers_disk_and_connection(world: World) -> None:
    worker = world.create_worker("patient")
    worker.environment["SIMPLETUNER_ORCHESTRATOR_URL"] = world.url
    seen = world.cli("doctor", "worker", **worker.environment)
    text = seen.stdout + seen.stderr
    assert seen.returncode in (0, 1), text
    for word in ("GPU", "GB free", "port"):
        assert word in text, text
