"""Folders of attempts go once they are stored, the newest few stay."""

from tests.e2e.kit import World
from tests.e2e.processes import wait_until


def test_a_workers_disk_does_not_fill_with_ended_attempts(world: World) -> None:
    worker = world.start_worker("tidy", "--keep-attempts", "2")
    attempts = worker.work_dir / "attempts"
    for _ in range(4):
        world.becomes(world.submit(world.command("true")), "completed")
    ended = {path.name for path in attempts.iterdir()}
    assert len(ended) == 4
    worker.becomes("idle")
    worker.running.signal(15)
    worker.running.wait()
    worker.start()
    worker.becomes("idle")
    wait_until(lambda: len(list(attempts.iterdir())) == 2, "the oldest are removed")
    newest = world.attempts(world.get("/api/jobs")["jobs"][0]["id"])[0]["id"]
    assert newest in {path.name for path in attempts.iterdir()}
