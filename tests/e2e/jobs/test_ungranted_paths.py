"""A real worker with a wall: what its owner did not grant is refused by name, what jobs fetch is kept for their owner."""

import sys
from pathlib import Path

import pytest

from tests.attacks.jobs.test_job_isolation import what_is_missing
from tests.e2e.kit import World
from tests.e2e.processes import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        bool(what_is_missing("user")) and bool(what_is_missing("namespace")), reason="no wall"
    ),
]


def test_a_folder_that_is_not_granted_is_refused_by_name_and_used_where_it_is(
    world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir(mode=0o755)
    (folder / "note").write_text("seen")
    bundle = world.command(sys.executable, "-c", "print(open('note').read())", resources={"gpus": 0})
    bundle["settings"]["cwd"] = str(folder)
    world.start_worker("closed", "--isolation", "required", "--label", "who=closed")
    refused = world.submit(bundle, worker_labels={"who": "closed"})
    world.becomes(refused, "failed")
    failure = world.job(refused)["failure"]
    assert failure["class"] == "path_not_granted"
    assert f"--job-path {folder}:ro" in failure["evidence"]
    assert len(world.get(f"/api/jobs/{refused}/attempts")["attempts"]) == 1

    bundle["settings"]["cwd"] = str(tmp_path / "nothing")
    probing = world.submit(bundle, worker_labels={"who": "closed"})
    world.becomes(probing, "failed")
    probed = world.job(probing)["failure"]
    assert probed["evidence"].replace("nothing", "project") == failure["evidence"], (
        "what is not there is told alike"
    )
    assert probed["class"] == failure["class"]

    opened = world.start_worker(
        "open", "--isolation", "required", "--label", "who=open", "--job-path", f"{folder}:ro"
    )
    assert world.call("POST", f"/api/admin/workers/{opened.id}/drain").is_success
    bundle["settings"]["cwd"] = str(folder)
    seen = world.submit(bundle)
    wait_until(lambda: world.attempts(seen), "the other worker has refused it")
    wait_until(
        lambda: world.explain(seen)["code"] == "ALL_MATCHING_DRAINING", "one is left that might grant it"
    )
    assert {"name": "closed", "fails": ["not_granted"]}.items() <= world.explain(seen)["workers"][-1].items()
    next_in_line = world.submit(world.command("true", resources={"gpus": 0}))
    world.becomes(next_in_line, "completed")
    assert world.call("POST", f"/api/admin/workers/{opened.id}/resume").is_success
    world.becomes(seen, "completed")
    assert [one["worker_name"] for one in world.attempts(seen)] == ["closed", "open"]
    assert "seen" in world.call("GET", f"/api/jobs/{seen}/logs").text


FETCHES = """
import contextlib, os, pathlib
cache = pathlib.Path(os.environ["HF_HUB_CACHE"])
print("found", sorted(path.name for path in cache.iterdir()))
(cache / "blob").write_text("a model")
(cache / "snapshot").unlink(missing_ok=True)
(cache / "snapshot").symlink_to("blob")
print("read", (cache / "snapshot").read_text())
with contextlib.suppress(OSError):
    (cache.parent / "holder").write_text("forged")  # perhaps in a folder that only looks like the worker's
"""


def test_what_a_job_fetched_from_the_hub_is_there_for_the_next_of_its_owner_and_for_nobody_else(
    world: World,
) -> None:
    worker = world.start_worker("one", "--isolation", "required")
    bundle = world.command(sys.executable, "-c", FETCHES, resources={"gpus": 0})

    def said(**headers: str) -> str:
        answer = world.call("POST", "/api/queue/submit", {"target": "worker", "config": bundle}, **headers)
        assert answer.is_success, answer.text
        job_id = answer.json()["job_id"]
        world.becomes(job_id, "completed")
        return str(world.call("GET", f"/api/jobs/{job_id}/logs").text)

    token = world.post(
        "/api/admin/tokens", {"name": "other", "permissions": ["queue.submit", "queue.submit.command"]}
    )["token"]
    assert "found []\nread a model" in said()
    assert "found ['blob', 'snapshot']" in said()
    assert "found []" in said(authorization=f"Bearer {token}")
    assert {path.name for path in (worker.work_dir / "downloads").glob("*/*")} <= {"hub", "holder"}
    books = [path.read_text() for path in (worker.work_dir / "downloads").glob("*/holder")]
    assert "forged" not in books
