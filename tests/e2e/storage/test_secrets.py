"""A secret reaches the trainer that needs it and nobody else: not a disk, a log, another process or an answer."""

import hashlib
import sys
from pathlib import Path

from tests.e2e.kit import Json, World
from tests.e2e.processes import wait_until

CANARY = "hf_canary_0123456789abcdef"
ROTATED = "hf_rotated_9876543210fedcba"
LONG = {"SIMPLETUNER_HEARTBEAT_TIMEOUT": "20"}
TELL = """
import hashlib, os, sys, time
token = os.environ["HF_TOKEN"]
def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
pid, seen = parent(os.getpid()), 0
while pid > 1:
    shown = open(f"/proc/{pid}/environ", "rb").read() + open(f"/proc/{pid}/cmdline", "rb").read()
    seen += token.encode() in shown
    pid = parent(pid)
print("above:", seen, flush=True)
print("got", hashlib.sha256(token.encode()).hexdigest(), flush=True)
while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
print("whole", token, flush=True)
print("half", token[:9], end="", flush=True)
time.sleep(0.8)
print(token[9:], flush=True)
print(dict(os.environ), flush=True)
sys.exit(int(sys.argv[1]))
"""


def wants_secret(exit_code: int, *more: str) -> Json:
    config = World.command(sys.executable, "-c", TELL, str(exit_code), *more)
    return {**config, "secrets": {"HF_TOKEN": "hf-token"}}


def store_secret(world: World, value: str) -> None:
    file = world.folder / "value"
    file.write_text(value)
    done = world.cli("secrets", "set", "hf-token", "--from-file", str(file))
    file.unlink()
    assert done.returncode == 0, done.stderr


def log_of(world: World, job_id: str) -> str:
    answer = world.call("GET", f"/api/jobs/{job_id}/logs")
    assert answer.status_code == 200
    return answer.text


def fingerprint(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def files_that_hold(folder: Path, *values: str) -> set[str]:
    """What a trainer prints lies in its own output file, unmasked, on its own machine."""
    paths = set()
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "output.log":
            content = file.read_bytes()
            paths |= {str(file) for value in values if value.encode() in content}
    return paths


def test_a_secret_reaches_its_trainer_and_is_seen_nowhere_else(world: World) -> None:
    store_secret(world, CANARY)
    world.start_worker("careful")
    job_id = world.submit(wants_secret(1), name="prints it")
    world.becomes(job_id, "failed")
    log_text = log_of(world, job_id)
    masked = "*" * len(CANARY)
    assert f"got {fingerprint(CANARY)}" in log_text
    assert "above: 0" in log_text
    assert f"whole {masked}\n" in log_text
    assert f"half {masked}\n" in log_text
    assert f"'HF_TOKEN': '{masked}'" in log_text
    orders = list(world.folder.rglob("order.json"))
    assert len(orders) == 1
    assert '"HF_TOKEN":""' in orders[0].read_text()

    store_secret(world, ROTATED)
    again = str(world.post(f"/api/jobs/{job_id}/retry")["id"])
    world.becomes(again, "failed")
    assert f"got {fingerprint(ROTATED)}" in log_of(world, again)

    paths = ["/api/secrets", "/api/audit", "/api/jobs", "/api/admin/workers", "/api/configs"]
    for job in (job_id, again):
        paths += [f"/api/jobs/{job}{more}" for more in ("", "/attempts", "/events", "/logs", "/explain")]
    for path in paths:
        answer = world.call("GET", path)
        assert answer.status_code == 200, path
        assert CANARY not in answer.text, path
        assert ROTATED not in answer.text, path
    assert files_that_hold(world.folder, CANARY, ROTATED) == set()


def test_a_worker_started_again_still_masks_what_its_trainer_prints(bare_world: World) -> None:
    world = bare_world
    world.start_server(**LONG)
    store_secret(world, CANARY)
    worker = world.start_worker("phoenix", "--restarted-within", "25")
    gate = world.gate()
    job_id = world.submit(wants_secret(1, str(gate)))
    wait_until(lambda: "got" in log_of(world, job_id), "the trainer has begun")
    worker.running.kill()
    worker.start()
    worker.running.says(f"took up job {job_id} again")
    gate.touch()
    world.becomes(job_id, "failed")
    assert f"whole {'*' * len(CANARY)}\n" in log_of(world, job_id)
    assert CANARY not in log_of(world, job_id) + str(world.attempts(job_id))
    assert files_that_hold(world.folder, CANARY) == set()


def test_a_shim_that_reports_by_itself_masks_the_last_lines(bare_world: World) -> None:
    world = bare_world
    world.start_server(**LONG)
    store_secret(world, CANARY)
    worker = world.start_worker("gone")
    gate = world.gate()
    job_id = world.submit(wants_secret(1, str(gate)))
    wait_until(lambda: "got" in log_of(world, job_id), "the trainer has begun")
    gate.touch()
    wait_until(lambda: "whole" in log_of(world, job_id), "it has printed its secret")
    worker.running.kill()
    world.becomes(job_id, "failed")
    [attempt] = world.attempts(job_id)
    assert f"half {'*' * len(CANARY)}" in attempt["last_lines"]
    assert CANARY not in str(attempt)


def test_a_secret_deleted_while_its_job_waited_is_told_with_what_to_do(world: World) -> None:
    store_secret(world, CANARY)
    job_id = world.submit(wants_secret(0), max_retries=0)
    assert world.cli("secrets", "delete", "hf-token").returncode == 0
    world.start_worker("late", becomes=None)
    assert "simpletuner secrets set hf-token" in str(world.becomes(job_id, "failed")["error"])
