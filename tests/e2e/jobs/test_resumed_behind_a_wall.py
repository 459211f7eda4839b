"""An attempt that goes on where the one before was stopped, on the same worker, as another user."""

import sys

import pytest

from tests.attacks.jobs.test_job_isolation import what_is_missing
from tests.e2e.kit import World

TRAINER = """
import os, sys
checkpoint = os.environ.get("SIMPLETUNER_RESUME_FROM")
if checkpoint:
    print("went on with", open(f"{checkpoint}/model").read())
    open(f"{checkpoint}/model", "a").write("!")
    sys.exit(0)
folder = os.environ["SIMPLETUNER_OUTPUT_DIR"] + "/checkpoint-7"
os.mkdir(folder)
open(f"{folder}/model", "w").write("weights")
os.chmod(f"{folder}/model", 0o600)
open(f"{folder}/.guard", "w").close()
sys.exit(1)
"""


@pytest.mark.e2e
@pytest.mark.skipif(bool(what_is_missing("user")) and bool(what_is_missing("namespace")), reason="no wall")
def test_a_checkpoint_that_was_written_for_its_owner_alone_is_the_next_attempts_too(world: World) -> None:
    """Trainers write weights so; the next attempt has another user, and finds them on the worker's own disk."""
    world.start_worker("gpu-1", "--isolation", "required")
    bundle = world.command(sys.executable, "-c", TRAINER, resources={"gpus": 0})
    job_id = world.submit(bundle, retry_on_failure=True, max_retries=1)
    job = world.becomes(job_id, "completed")
    assert job["resumed_from_step"] == 7
    assert "went on with weights" in world.call("GET", f"/api/jobs/{job_id}/logs").text
