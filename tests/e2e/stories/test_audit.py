"""Every act leaves one entry, and no entry can be changed or cut off unseen."""

import signal
import sqlite3
from functools import partial

import pytest

from tests.e2e.kit import Worker, World
from tests.e2e.processes import wait_until


def types(world: World) -> list[str]:
    return [entry["event_type"] for entry in world.get("/api/audit?limit=500")["entries"]]


def edit(world: World, statement: str) -> None:
    """With the server ended: somebody at the database."""
    world.orchestrator.signal(signal.SIGTERM)
    world.orchestrator.wait()
    database = sqlite3.connect(world.home / "fleet.db")
    with database:
        database.execute(statement)
    database.close()
    world.restart_server()


def heard_since(worker: Worker, before: str) -> bool:
    return bool(worker.seen["last_heartbeat"] > before)


def test_every_act_is_logged_and_the_log_verifies(world: World) -> None:
    worker = world.start_worker("watched")
    bad = {"x-worker-token": worker.token[:-1] + ("a" if worker.token[-1] != "a" else "b")}
    refused = world.client.post(f"{world.url}/api/workers/register", json={}, headers=bad)
    assert refused.status_code == 401
    world.put("/api/configs/watched", world.command("true"))
    done = world.submit("watched")
    world.becomes(done, "completed")
    cancelled = world.submit(world.ticking(world.gate()))
    world.runs(cancelled)
    world.post(f"/api/jobs/{cancelled}/cancel")
    world.becomes(cancelled, "cancelled")
    world.post(f"/api/admin/workers/{worker.id}/drain")
    world.post(f"/api/admin/workers/{worker.id}/resume")
    worker.running.signal(signal.SIGTERM)
    worker.running.wait()
    worker.becomes("offline")
    world.post(f"/api/admin/workers/{worker.id}/token")
    world.call("DELETE", f"/api/admin/workers/{worker.id}")
    event_types = types(world)
    acts = {
        "registration attempts, success": "worker.registered",
        "registration attempts, failure": "worker.registration_failed",
        "job dispatch events": "job.dispatched",
        "status transitions of workers": "worker.status_changed",
        "status transitions of jobs": "job.completed",
        "token rotations": "worker.token_rotated",
        "creation": "worker.created",
        "drain": "worker.drained",
        "resume": "worker.resumed",
        "deletion": "worker.deleted",
        "submission": "job.submitted",
        "cancellation": "job.cancel_requested",
        "configs": "config.saved",
        "goodbye": "worker.disconnected",
    }
    missing = {act for act, event_type in acts.items() if event_type not in event_types}
    assert not missing
    for once in (
        "worker.created",
        "worker.drained",
        "worker.resumed",
        "worker.token_rotated",
        "worker.deleted",
    ):
        assert event_types.count(once) == 1, once
    verdict = world.get("/api/audit/verify")
    assert verdict["valid"]
    assert verdict["checked"] == world.get("/api/audit")["total"]
    listed = world.cli("audit", "list", "--event-type", "worker.token_rotated")
    assert listed.returncode == 0
    assert "worker.token_rotated" in listed.stdout
    assert world.cli("audit", "verify").returncode == 0


def test_entries_say_who_did_what_to_whom_from_where(world: World) -> None:
    worker = world.create_worker("named")
    [entry] = world.get(f"/api/audit?event_type=worker.created&target_id={worker.id}")["entries"]
    assert entry["actor_id"].startswith("t_")
    assert (entry["ip"], entry["target_type"]) == ("127.0.0.1", "worker")
    assert entry["details"]["name"] == "named"
    assert entry["hash"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET actor_name = 'nobody' WHERE seq = 3",
        "UPDATE audit SET at = at + 1 WHERE seq = 3",
        "DELETE FROM audit WHERE seq = 3",
    ],
)
def test_an_edit_in_the_database_is_found(world: World, statement: str) -> None:
    for number in range(3):
        world.create_worker(f"worker-{number}")
    assert world.get("/api/audit/verify")["valid"]
    edit(world, statement)
    verdict = world.get("/api/audit/verify")
    assert not verdict["valid"]
    assert verdict["problems"]
    assert world.cli("audit", "verify").returncode == 1


def test_a_log_cut_off_at_its_end_is_found_by_what_a_worker_has_seen(world: World) -> None:
    witness = world.start_worker("witness")
    world.create_worker("deed")
    head = world.get("/api/audit?limit=1")["entries"][0]["id"]
    heads = world.home / "audit_heads.jsonl"
    wait_until(lambda: f'"seq":{head}' in heads.read_text().replace(" ", ""), "the head is signed")
    for what in ("the witness has been told the head", "and has answered since"):
        wait_until(partial(heard_since, witness, witness.seen["last_heartbeat"]), what)
    edit(world, f"DELETE FROM audit WHERE seq >= {head}")
    witness.becomes("idle")
    wait_until(lambda: not world.get("/api/audit/verify")["valid"], "the witness contradicts the log")
    wait_until(
        lambda: any(witness.id in str(one) for one in world.get("/api/audit/verify")["problems"]),
        "the witness is named",
    )
