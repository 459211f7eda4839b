"""A hostile job that lays traps for whoever comes after it on the worker: a real server, a real worker, real jobs."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from simpletuner_fleet.agent.attempts.preparation import Preparation
from simpletuner_fleet.agent.metrics.metric_files import MetricFile, latest_points
from simpletuner_fleet.agent.metrics.readings import Readings
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.training.metrics import MAX_KEYS
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.config_files import change_setting, write_config_files
from simpletuner_fleet.trainers.contract import Paths, Surroundings
from simpletuner_fleet.trainers.job_files import open_job_file, read_job_file
from simpletuner_fleet.trainers.job_trees import remove_tree
from simpletuner_fleet.trainers.registry import Registry
from simpletuner_fleet.trainers.simpletuner.trainer import SimpleTunerTrainer
from tests.attacks.jobs.test_job_isolation import what_is_missing
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
    preparation.take_caches(offered(attempt_id, owner))
    return preparation.caches.place_of(attempt_id)


def offered(attempt_id: str, owner: str) -> JobSubmit:
    return JobSubmit(
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


@pytest.fixture
def attempts(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of two jobs on one worker, a thief's and a victim's."""
    folders = [tmp_path / "attempts" / name / "job" for name in ("a_thief", "a_victim")]
    for folder in folders:
        (folder / "output").mkdir(parents=True)
    (folders[1] / "output" / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    return folders[0], folders[1]


def test_a_job_that_changes_its_config_leads_its_worker_nowhere_else(attempts: tuple[Path, Path]) -> None:
    """It named the folder of another job for its own results, and was sent them."""
    thief, victim = attempts
    paths = Paths(
        attempt_dir=thief,
        config_dir=thief / "config",
        output_dir=thief / "output",
        kept_config=thief.parent / "written.json",
    )
    offer = replace(offered("a_thief", "u_1"), config={"output_dir": "output/mine"})
    write_config_files(offer, paths, {"--output_dir": "output/mine"})
    change_setting(paths, "resume_from_checkpoint", "latest")
    trainer = SimpleTunerTrainer(Surroundings(environment={}, trainer_python=sys.executable))
    before = trainer.output_folder(paths)
    paths.config_file.write_text(json.dumps({"--output_dir": str(victim / "output")}))
    assert trainer.output_folder(paths) == before == thief / "output/mine"
    paths.config_file.unlink()
    os.mkfifo(paths.config_file)
    assert trainer.keeps(paths, "checkpoint-1") is None, "nor does it wait for whatever stands there now"
    with pytest.raises(FileNotFoundError):
        read_job_file(paths.config_file)


def test_numbers_are_read_from_no_file_of_another_job(attempts: tuple[Path, Path]) -> None:
    thief, victim = attempts
    link = thief / "output" / "metrics.jsonl"
    link.symlink_to(victim / "output" / "metrics.jsonl")
    assert MetricFile(link).peek(10) is None
    assert latest_points(link) == []
    assert MetricFile(victim / "output" / "metrics.jsonl").peek(10)


@pytest.mark.parametrize("replaced", ["the file", "a folder", "the whole output"])
def test_results_in_a_place_named_in_full_are_read_from_nowhere_else(tmp_path: Path, replaced: str) -> None:
    """While they are sent, the job lays a link where a file was: what is opened counts, not its name."""
    models, secret = tmp_path / "models", tmp_path / "secret"
    (secret / "checkpoint-1").mkdir(parents=True)
    (secret / "checkpoint-1" / "model").write_text("canary")
    output = models / "j_thief-1"
    file = output / "checkpoint-1" / "model"
    file.parent.mkdir(parents=True)
    file.write_text("own")
    with open_job_file(file) as opened:
        assert opened.read() == b"own"
    if replaced == "the file":
        file.unlink()
        file.symlink_to(secret / "checkpoint-1" / "model")
    elif replaced == "a folder":
        shutil.rmtree(file.parent)
        file.parent.symlink_to(secret / "checkpoint-1")
    else:
        shutil.rmtree(output)
        output.symlink_to(secret)
    with pytest.raises(FileNotFoundError, match="leads out"):
        open_job_file(file)


def test_a_name_for_every_number_costs_no_more_than_a_few_names(tmp_path: Path) -> None:
    """Each was copied with all before it: fifty thousand names kept the worker busy for minutes."""
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(f'{{"step": {n}, "k{n}": 1}}\n' for n in range(5_000)))
    readings = Readings([file], None)
    assert len(readings.read()) == 5_000
    assert readings.latest()[-1].step == 4_999
    assert len(readings.latest()[-1].values) == MAX_KEYS
