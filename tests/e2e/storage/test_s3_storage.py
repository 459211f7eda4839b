"""Checkpoints and models in S3, through the whole of it: a real server with a bucket, real workers, a machine that dies."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.e2e.kit import World
from tests.e2e.storage.test_checkpoints import (
    LONG,
    assert_joined,
    attempt_folder,
    demo,
    kill_machine,
    stored_step,
)
from tests.s3_server import BUCKET, CREDENTIALS, SECRET, running_s3

PREFIX = "fleet/a"


@pytest.fixture
def endpoint() -> Iterator[str]:
    with running_s3() as running:
        yield running


def objects_in(endpoint: str) -> set[str]:
    listing = httpx2.get(f"{endpoint}/{BUCKET}?list-type=2&prefix={PREFIX}/objects/", trust_env=False).text
    return set(re.findall(r"/objects/[0-9a-f]{2}/([0-9a-f]{64})</Key>", listing))


def test_a_job_goes_on_from_a_checkpoint_out_of_s3_and_its_model_comes_from_there(
    bare_world: World, endpoint: str, tmp_path: Path
) -> None:
    world = bare_world
    world.environment.update(CREDENTIALS)
    world.start_server(SIMPLETUNER_STORAGE_URL=f"s3://{BUCKET}/{PREFIX}?endpoint={endpoint}")
    first = world.start_worker("first")
    job_id = world.submit(demo())
    stored_step(world, job_id, at_least=40)
    second = world.start_worker("second")
    kill_machine(first, world.attempts(job_id)[0])
    safe = int(world.job(job_id)["checkpoint_step"])
    world.becomes(job_id, "completed", LONG)
    assert assert_joined(world, job_id, first, second) == safe

    trained = attempt_folder(second, world.attempts(job_id)[1]) / "job" / "output" / "model.npz"
    done = world.cli("jobs", "download", job_id, "--to", str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr
    [fetched] = (tmp_path / "model").rglob("model.npz")
    assert fetched.read_bytes() == trained.read_bytes()

    kept = {file["sha256"] for file in manifest_files(world, job_id)}
    assert hashlib.sha256(trained.read_bytes()).hexdigest() in kept
    assert kept <= objects_in(endpoint)
    assert not list(world.home.rglob("objects/*/*")), "the bucket has them, the folder does not"
    assert SECRET not in world.orchestrator.text


def manifest_files(world: World, job_id: str) -> list[dict[str, str]]:
    manifests = world.get(f"/api/jobs/{job_id}/artifacts")["manifests"]
    return [file for manifest in manifests for file in manifest["files"]]
