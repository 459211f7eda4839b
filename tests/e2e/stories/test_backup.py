"""A backup of a fleet at work, and the way back to it: real programs, nothing given back, nothing doubled."""

import json
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.kit import World

PASSWORD = "plum kettle 7 fog"


def status_of(world: World, token: str, header: str = "Authorization") -> int:
    value = f"Bearer {token}" if header == "Authorization" else token
    path = "/api/whoami" if header == "Authorization" else "/api/workers/queue?worker_id="
    return world.client.get(world.url + path, headers={header: value}).status_code


def log_in(world: World, name: str) -> int:
    body = {"name": name, "password": PASSWORD}
    return world.client.post(
        world.url + "/api/login", json=body, headers={"Sec-Fetch-Site": "same-origin"}
    ).status_code


def stop_server(world: World) -> None:
    world.orchestrator.signal(signal.SIGTERM)
    world.orchestrator.wait()


def backed_up(world: World, *more: str) -> Path:
    file = world.folder / "fleet.backup"
    done = world.cli("backup", "create", str(file), *more)
    assert done.returncode == 0, done.stderr
    assert file.stat().st_mode & 0o077 == 0
    done = world.cli("backup", "verify", str(file))
    assert done.returncode == 0, done.stderr
    return file


def people_and_tokens(world: World) -> tuple[dict[str, str], dict[str, str]]:
    tokens = {}
    for name in ("kept", "revoked"):
        body = {"name": name, "permissions": ["jobs.read"]}
        made = world.post("/api/admin/tokens", body)
        tokens[name] = made["token"]
        tokens[f"{name} id"] = made["id"]
    users = {}
    for name in ("stays", "disabled", "changed"):
        users[name] = world.post("/api/admin/users", {"name": name, "role": "member", "password": PASSWORD})[
            "id"
        ]
    return tokens, users


def test_a_restore_gives_back_nothing_that_was_taken_away_since(world: World) -> None:
    tokens, users = people_and_tokens(world)
    kept, rotated = world.create_worker("kept"), world.create_worker("rotated")
    stop = threading.Event()
    hammer = threading.Thread(target=lambda: submit_until(world, stop))
    hammer.start()
    file = backed_up(world)
    stop.set()
    hammer.join()
    assert world.call("DELETE", f"/api/admin/tokens/{tokens['revoked id']}").status_code == 200
    assert world.call("PATCH", f"/api/admin/users/{users['disabled']}", {"disabled": True}).status_code == 200
    newer = world.post(f"/api/admin/workers/{rotated.id}/token")["token"]
    before = world.get("/api/audit/verify")
    stop_server(world)
    forget_last_line(world.home / "revocations.jsonl")
    world.restart_server()
    stop_server(world)
    refused = world.cli("backup", "restore", str(file))
    assert refused.returncode == 1
    assert "--replace" in refused.stderr
    done = world.cli("backup", "restore", str(file), "--replace")
    assert done.returncode == 0, done.stderr
    assert f"these workers need a new token, once the server runs: {rotated.id}\n" in done.stderr
    assert f"these API tokens stay revoked: {tokens['revoked id']}\n" in done.stderr
    assert [path for path in world.home.iterdir() if ".before-" in path.name]
    world.restart_server()
    assert status_of(world, tokens["kept"]) == 200
    assert status_of(world, tokens["revoked"]) == 401
    assert log_in(world, "stays") == 200
    assert log_in(world, "disabled") == 401
    assert status_of(world, kept.token, "X-Worker-Token") == 200
    assert status_of(world, rotated.token, "X-Worker-Token") == 401, "what was rotated away stays away"
    assert status_of(world, newer, "X-Worker-Token") == 401, "nobody knows it any more: it is rotated again"
    noted = world.get("/api/audit?event_type=server.restored")["entries"]
    assert noted[0]["details"]["credentials"] == "journal"
    assert before["valid"] is True


def forget_last_line(journal: Path) -> None:
    """Leaves the journal as a server does that is killed when a rotation is stored and not noted yet."""
    *before, last = journal.read_bytes().splitlines(keepends=True)
    assert b"token_rotated" in last
    journal.write_bytes(b"".join(before))


def submit_until(world: World, stop: threading.Event) -> None:
    while not stop.is_set():
        world.submit(world.command("true"), target="worker")
        time.sleep(0.01)


def test_without_the_journal_nothing_that_lets_somebody_in_is_believed(world: World) -> None:
    tokens, _users = people_and_tokens(world)
    worker = world.create_worker("gpu-1")
    file = backed_up(world)
    stop_server(world)
    (world.home / "revocations.jsonl").unlink()
    done = world.cli("backup", "restore", str(file), "--replace")
    assert done.returncode == 0, done.stderr
    assert "is unknown" in done.stdout + done.stderr
    world.restart_server()
    assert status_of(world, world.admin_token) == 200, "that of the data folder"
    assert status_of(world, tokens["kept"]) == 401
    assert log_in(world, "stays") == 401
    assert status_of(world, worker.token, "X-Worker-Token") == 401


def test_a_restore_doubles_no_job_that_runs_and_goes_back_in_no_epoch(world: World) -> None:
    """The job waits in the backup, and has begun since on a worker that the restored database believes idle."""
    first = world.create_worker("first")
    job = world.submit(world.ticking(world.gate()), target="worker")
    file = backed_up(world)
    first.start("--orchestrator-url", world.url, "--persistent", "--work-dir", str(first.work_dir))
    world.runs(job)
    epoch = world.attempts(job)[-1]["epoch"]
    trainers = trainers_of(world)
    assert len(trainers) == 1
    world.kill_server()
    done = world.cli("backup", "restore", str(file), "--replace")
    assert done.returncode == 0, done.stderr
    world.restart_server()
    other = world.start_worker("other")
    assert world.job(job)["status"] == "queued", "held, though a worker is idle"
    other.becomes("idle")
    said = world.explain(job)
    assert (said["code"], world.job(job)["status"]) == ("HELD_AFTER_RESTORE", "queued"), said
    assert said["params"]["until"] == pytest.approx(time.time() + said["params"]["wait_s"], abs=2)
    refused = world.call(
        "POST", "/api/queue/submit", {"config": world.command("true"), "target": "worker", "no_wait": True}
    )
    assert refused.status_code == 409, "what is held does not start now"
    until = time.monotonic() + 40
    while world.job(job)["status"] != "running" and time.monotonic() < until:
        now = trainers_of(world)
        assert len(now) <= 1, f"two at once: {now}"
        time.sleep(0.1)
    assert world.job(job)["status"] == "running", world.job(job)
    world.runs(
        job, times=2
    )  # it counts as running once it is accepted, a moment before its program is executed
    assert len(trainers_of(world)) == 1
    assert not set(trainers) & set(trainers_of(world)), "the first was told to stop"
    assert world.attempts(job)[-1]["epoch"] > epoch
    world.kill_server()
    after_first = counted_epoch(world)
    done = world.cli("backup", "restore", str(file), "--replace")
    assert done.returncode == 0, done.stderr
    assert counted_epoch(world) > after_first, "also where the same backup is restored again"


def counted_epoch(world: World) -> int:
    with closing(sqlite3.connect(world.home / "fleet.db")) as database:
        (epoch,) = database.execute("SELECT epoch FROM counters").fetchone()
    return int(epoch)


def trainers_of(world: World) -> list[int]:
    """Processes of the trainer that this world's jobs run, and that are not stopped."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            folder = (entry / "environ").read_bytes()
        except OSError:
            continue
        if b"trainer.py" in words and str(world.folder).encode() in folder + words and state not in "ZX":
            pids.append(int(entry.name))
    return pids


@pytest.mark.parametrize("damage", ["cut off", "changed", "nothing"])
def test_a_damaged_backup_is_told_and_restores_nothing(world: World, damage: str) -> None:
    file = backed_up(world)
    content = bytearray(file.read_bytes())
    if damage == "cut off":
        del content[len(content) // 2 :]
    elif damage == "changed":
        # One bit may change nothing: among zeros, whence a compressed run is copied is all the same.
        middle = len(content) // 2
        content[middle : middle + 64] = bytes(byte ^ 0xA5 for byte in content[middle : middle + 64])
    else:
        content = bytearray(b"nothing of ours")
    file.write_bytes(content)
    assert world.cli("backup", "verify", str(file)).returncode == 1
    stop_server(world)
    before = rows(world)
    assert world.cli("backup", "restore", str(file), "--replace").returncode == 1
    assert rows(world) == before


def test_keys_are_in_a_file_apart_and_open_the_secrets_again(world: World) -> None:
    world.put("/api/secrets/hf", {"value": "canary-of-the-secret"})
    keys = world.folder / "fleet.keys"
    file = backed_up(world, "--keys", str(keys))
    key = (world.home / "secrets.key").read_bytes()
    assert key not in file.read_bytes()
    assert keys.stat().st_mode & 0o077 == 0
    stop_server(world)
    assert world.cli("backup", "verify", str(backed_up(world))).returncode == 0, "a stopped server's, too"
    for path in world.home.iterdir():
        if path.is_file():
            path.unlink()
    done = world.cli("backup", "restore", str(file), "--keys", str(keys))
    assert done.returncode == 0, done.stderr
    assert (world.home / "secrets.key").read_bytes() == key
    world.restart_server()
    assert [one["name"] for one in world.get("/api/secrets")["secrets"]] == ["hf"]


def rows(world: World) -> str:
    with sqlite3.connect(world.home / "fleet.db") as connection:
        return json.dumps(connection.execute("SELECT seq, epoch FROM counters").fetchall())


def test_an_agent_that_was_started_since_the_backup_is_not_taken_for_an_older_one(world: World) -> None:
    worker = world.start_worker("restarted")
    file = backed_up(world)
    worker.running.kill()
    worker.start()
    worker.becomes("idle")
    world.kill_server()
    done = world.cli("backup", "restore", str(file), "--replace")
    assert done.returncode == 0, done.stderr
    world.restart_server()
    worker.becomes("idle")
    job_id = world.submit(world.command("true"), target="worker")
    world.becomes(job_id, "completed", within_s=60)
    assert worker.running.alive
