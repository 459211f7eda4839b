"""Completed means stored: whatever keeps results from being stored, nobody is told that a job is done before they are."""

import time
from collections.abc import Iterator

import pytest

from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.e2e.proxy import Proxy
from tests.e2e.storage.test_checkpoints import LONG, demo

UPLOADS = b"/objects/"


@pytest.fixture
def proxy(bare_world: World) -> Iterator[Proxy]:
    with Proxy(bare_world.port) as proxy:
        yield proxy


def waits_for_its_results(world: World, job_id: str) -> None:
    def finishing() -> bool:
        job = world.job(job_id)
        assert job["status"] != "completed", job
        return bool(
            job["phase"] == "finishing" and job["results"] == "pending" and job["progress"].get("waiting_for")
        )

    wait_until(finishing, "it is finishing, and says what is in the way", LONG)


def test_a_proxy_that_refuses_every_upload_leaves_no_job_green_and_nothing_lost(
    world: World, proxy: Proxy
) -> None:
    worker = world.start_worker("spot", url=proxy.url, persistent=False)
    proxy.answer(UPLOADS, 413)
    job_id = world.submit(demo())
    waits_for_its_results(world, job_id)
    assert "HTTP status 413" in world.job(job_id)["progress"]["waiting_for"]
    assert worker.running.alive, "an ephemeral worker does not leave with the only copy"
    listed = world.cli("jobs", "list")
    assert "finishing" in listed.stdout
    proxy.heal()
    job = world.becomes(job_id, "completed", LONG)
    assert job["results"] == "stored"
    names = [one["kind"] for one in world.get(f"/api/jobs/{job_id}/artifacts")["manifests"]]
    assert "artifact" in names


def test_a_worker_that_restarts_meanwhile_goes_on_sending(world: World, proxy: Proxy) -> None:
    worker = world.start_worker("one", url=proxy.url)
    proxy.answer(UPLOADS, 413)
    job_id = world.submit(demo())
    waits_for_its_results(world, job_id)
    worker.running.kill()
    time.sleep(4)  # The trainer's guardian has reported alone by then, and left.
    worker.start()
    waits_for_its_results(world, job_id)
    proxy.heal()
    job = world.becomes(job_id, "completed", LONG)
    assert (job["results"], job["attempt"]) == ("stored", 1)


def test_after_the_limit_it_is_said_that_the_results_are_missing_and_they_stay_on_the_worker(
    bare_world: World, proxy: Proxy
) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_RESULTS_WAIT="4")
    worker = world.start_worker("one", "--keep-attempts", "1", url=proxy.url)
    proxy.answer(UPLOADS, 413)
    job_id = world.submit(demo())
    job = world.becomes(job_id, "completed", LONG)
    assert (job["results"], job["reason"]) == ("missing", "results_missing")
    assert "HTTP status 413" in job["error"]
    shown = world.cli("jobs", "get", job_id)
    assert "MISSING" in shown.stdout
    assert "RESULTS MISSING" in world.cli("jobs", "list").stdout
    folder = worker.work_dir / "attempts" / world.attempts(job_id)[0]["id"]
    assert (folder / "not-stored").exists()
    assert list(folder.rglob("model.npz")), "they can be fetched while the worker lives"


def test_a_job_that_prints_nothing_and_makes_nothing_has_no_results(world: World) -> None:
    world.start_worker("one")
    job = world.becomes(world.submit(world.command("true")), "completed")
    assert job["results"] == "none"
    job = world.becomes(world.submit(world.command("echo", "hello")), "completed")
    assert job["results"] == "stored"
