"""A hostile job that lays traps for whoever comes after it on the worker: a real server, a real worker, real jobs."""

import sys
from pathlib import Path

import pytest

from simpletuner_fleet.agent.attempts.preparation import Preparation
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.job_trees import remove_tree
from simpletuner_fleet.trainers.registry import Registry
from tests.attacks.test_job_isolation import what_is_missing
from tests.e2e.kit import World

TRAPS = """
import os
for place in (os.environ["HF_HUB_CACHE"], os.environ["SIMPLETUNER_RANK_LOG_DIR"], "output/checkpoint-1/deep", "output/deep"):
    os.makedirs(place, exist_ok=True)
    here = os.open(place, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d" * 40, dir_fd=here)
        deeper = os.open("d" * 40, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
open("output/checkpoint-1/.guard", "w").close()
os.mkdir("output/checkpoint-2")
open("output/checkpoint-2/model", "w").write("model")
open("output/checkpoint-2/.guard", "w").close()
"""


@pytest.mark.e2e
@pytest.mark.skipif(bool(what_is_missing("user")) and bool(what_is_missing("namespace")), reason="no wall")
def test_folders_without_end_neither_stop_the_worker_nor_pass_for_stored(world: World) -> None:
    """Python gives up at a thousand calls, and the system at a path of 4,096 bytes: both were the worker's end."""
    worker = world.start_worker("gpu-1", "--isolation", "required", "--keep-attempts", "0")
    try:
        hostile = world.submit(world.command(sys.executable, "-c", TRAPS, resources={"gpus": 0}))
        ended = world.becomes(hostile, "completed")
        assert ended["results"] == "missing"
        stored = world.get(f"/api/jobs/{hostile}/artifacts")["manifests"]
        assert [one["name"] for one in stored] == ["checkpoint-2"]
        for _ in range(3):
            world.becomes(world.submit(world.command("true", resources={"gpus": 0})), "completed")
        assert worker.status == "idle"
        assert "RecursionError" not in worker.running.log.read_text()
    finally:
        worker.running.kill()
        remove_tree(worker.work_dir)  # pytest gets lost in there, too


def test_what_a_trainer_kept_for_its_owner_is_for_no_other(tmp_path: Path) -> None:
    """A trainer runs what it loads from there: whoever knew a config had their own code run by its next owner."""
    with StateDir.open(tmp_path) as state:
        trainers = Registry.load()
        client = OrchestratorClient("http://127.0.0.1:9", lambda: "", None)
        preparation = Preparation(state, trainers, client, None)
        places = [
            taken(preparation, attempt_id, owner) for attempt_id, owner in (("a_1", "u_1"), ("a_2", "u_2"))
        ]
        for attempt_id in ("a_1", "a_2"):
            preparation.caches.release(attempt_id)
        assert places[0] != places[1]
        assert taken(preparation, "a_3", "u_2") == places[1]
        assert taken(preparation, "a_4", "u_1") == places[0]


def taken(preparation: Preparation, attempt_id: str, owner: str) -> Path | None:
    offer = JobSubmit(
        job_id="j_1",
        attempt=1,
        attempt_id=attempt_id,
        epoch=1,
        config_name="c",
        config={"model_family": "sdxl"},
        trainer="simpletuner",
        upload_endpoint="",
        owner=owner,
    )
    preparation.take_caches(offer)
    return preparation.caches.place_of(attempt_id)
