"""A real worker with a wall: a job that names what its owner did not grant is refused by name, and runs once it is granted."""

import sys
from pathlib import Path

import pytest

from tests.attacks.test_job_isolation import what_is_missing
from tests.e2e.kit import World

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

    world.start_worker("open", "--isolation", "required", "--label", "who=open", "--job-path", f"{folder}:ro")
    seen = world.submit(bundle, worker_labels={"who": "open"})
    world.becomes(seen, "completed")
    assert "seen" in world.call("GET", f"/api/jobs/{seen}/logs").text
