"""The programs go on with what an older release has left behind."""

from tests.e2e.kit import World
from tests.migrations.previous_release import ADMIN, JOBS, QUEUED, READER, RUNNING, WORKER, write_database


def test_the_programs_go_on_with_what_an_older_release_has_left(bare_world: World) -> None:
    world = bare_world
    write_database(world.home / "fleet.db")
    (world.home / "admin_token").touch(mode=0o600)
    (world.home / "admin_token").write_text(ADMIN)
    world.start_server()
    assert {job_id: world.job(job_id)["status"] for job_id in JOBS} == JOBS
    assert world.get("/api/audit/verify")["valid"] is True
    assert world.get("/api/configs/tiny")["settings"] == {"command": ["true"]}
    assert [user["name"] for user in world.get("/api/admin/users")["users"]] == ["ada"]
    reader = {"authorization": f"Bearer {READER}"}
    assert world.client.get(f"{world.url}/api/jobs", headers=reader).status_code == 200
    assert world.client.get(f"{world.url}/api/admin/tokens", headers=reader).status_code == 403
    worker = world.worker_of({"worker_id": "w_BIWVWMOBwDga", "token": WORKER, "name": "gpu-1"})
    words = ["--orchestrator-url", world.url, "--name", "gpu-1", "--work-dir", str(worker.work_dir)]
    worker.start(*words, "--persistent", "--max-jobs", "2")
    world.becomes(RUNNING, "running")
    assert worker.status in ("idle", "busy")
    assert world.post(f"/api/queue/{QUEUED}/cancel")["status"] == "cancelled"
    done = world.submit("tiny")
    world.becomes(done, "completed")
    assert world.get("/api/audit/verify")["valid"] is True
