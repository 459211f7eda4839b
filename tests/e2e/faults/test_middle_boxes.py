"""What stands between a worker and its orchestrator may answer anything: nobody believes it."""

from collections.abc import Iterator

import pytest

from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.e2e.proxy import Proxy

STATUS = b"/status HTTP/1.1"


@pytest.fixture
def proxy(bare_world: World) -> Iterator[Proxy]:
    with Proxy(bare_world.port) as proxy:
        yield proxy


@pytest.mark.parametrize("status", [301, 403, 404, 410, 413])
def test_an_outcome_that_a_middle_box_answers_is_kept_and_delivered(
    world: World, proxy: Proxy, status: int
) -> None:
    """On the way out everything else goes on: only the report of the end is answered by somebody else."""
    world.start_worker("behind", url=proxy.url)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    proxy.answer(STATUS, status)
    gate.write_text("0")
    before = len(proxy.requests)
    wait_until(lambda: sum("/status " in line for line in proxy.requests[before:]) >= 2, "it is tried again")
    assert world.job(job_id)["status"] == "running"
    proxy.heal()
    job = world.becomes(job_id, "completed")
    assert (job["attempt"], len(world.journal.runs(job_id))) == (1, 1), "it ran once"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_worker_that_first_meets_a_middle_box_waits_for_the_orchestrator(
    world: World, proxy: Proxy, status: int
) -> None:
    proxy.answer(b"/api/workers/", status)
    worker = world.start_worker("early", url=proxy.url, becomes=None)
    wait_until(lambda: len(proxy.requests) >= 3, "it tries again")
    wait_until(lambda: f"HTTP status {status}" in worker.running.text, "it says what it met")
    assert worker.running.alive, worker.running.text
    proxy.heal()
    worker.becomes("idle")


def test_a_check_finds_a_proxy_that_takes_no_large_bodies_before_any_result_is_lost_to_it(
    world: World, proxy: Proxy
) -> None:
    worker = world.create_worker("behind")
    proxy.answer(b"PUT /api/workers/job/", 413)
    words = ("--orchestrator-url", proxy.url, "--work-dir", str(worker.work_dir))
    worker.start(*words, "--check")
    assert worker.running.wait() != 0
    assert "HTTP status 413" in worker.running.text
    token = worker.environment["SIMPLETUNER_WORKER_TOKEN"]
    at_worker = {"SIMPLETUNER_ORCHESTRATOR_URL": proxy.url, "SIMPLETUNER_WORKER_TOKEN": token}
    answer = world.cli("doctor", "worker", **at_worker)
    assert answer.returncode != 0
    assert "HTTP 413" in answer.stdout
    proxy.heal()
    worker.start(*words, "--check")
    assert worker.running.wait() == 0
    assert "an upload of 8 MiB arrives intact" in worker.running.text
