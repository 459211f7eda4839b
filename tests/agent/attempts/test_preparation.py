"""Whose fault it is that an attempt could not be prepared: a worker with a full disk must not fail the whole queue."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.endings import final_report
from simpletuner_fleet.agent.attempts.preparation import Preparation, blame_for, explain_start_failure
from simpletuner_fleet.agent.data.data_cache import DataCache
from simpletuner_fleet.agent.data.datasets import Datasets, FetchProgress
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.jobs.failure import classify
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.protocol.messages import JobSubmit, StatusReport
from simpletuner_fleet.trainers.contract import Launch
from simpletuner_fleet.trainers.registry import Registry
from tests.agent.data.test_datasets import BIG, COWS, LIMIT, PETS, a_server, offer

JOB = ""
"""How a report says that the job itself is at fault."""


@contextmanager
def no_file_of(most_bytes: int) -> Iterator[None]:
    """Makes writing fail half-way, as it does on a full disk."""
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes - 1, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def preparation(state: StateDir, client: OrchestratorClient, data: Datasets | None) -> Preparation:
    return Preparation(state, Registry.load(environment={}), client, data)


async def failure(
    folder: Path, client: OrchestratorClient, data: Datasets | None, job: JobSubmit
) -> StatusReport:
    """Returns what is reported of a job whose data cannot be put in place."""
    with StateDir.open(folder) as state:
        preparing = preparation(state, client, data)

        async def launch() -> Launch:
            return preparing.launch(job)

        preparing.begin(turn_of(job), launch())
        ending = await preparing.put_in_place(job, lambda: True)
        await preparing.forget(turn_of(job))
    assert ending is not None
    report = final_report(None, ending)
    assert classify(None, None, None, report.error).code == "data"
    return report


async def test_a_disk_that_fills_up_while_data_is_fetched_is_the_workers_fault(tmp_path: Path) -> None:
    async with a_server() as (_, client):
        data = Datasets(DataCache.open(tmp_path / "cache", LIMIT), client)
        with no_file_of(len(BIG)):
            report = await failure(tmp_path / "state", client, data, offer(pets=PETS))
    assert (report.blame, report.error) == (
        Blame.WORKER,
        "the data could not be written: File too large",
    )


async def test_a_disk_that_takes_no_config_is_the_workers_fault(tmp_path: Path) -> None:
    job = offer()
    job.config["prompt"] = "x" * len(BIG)
    async with a_server() as (_, client):
        with StateDir.open(tmp_path) as state:
            preparing = preparation(state, client, None)
            preparing.make_folders(job, were_spare=False)
            with no_file_of(len(BIG)), pytest.raises(OSError, match="too large") as full:
                preparing.launch(job)
    assert blame_for(full.value) is Blame.WORKER
    assert explain_start_failure(full.value) == "the worker could not prepare the job: File too large"


async def test_a_cache_that_is_full_of_what_others_use_is_the_workers_fault(tmp_path: Path) -> None:
    async with a_server() as (_, client):
        data = Datasets(DataCache.open(tmp_path / "cache", len(BIG) + 1000), client)
        await data.put_in_place(offer(1, pets=PETS), FetchProgress())
        report = await failure(tmp_path / "state", client, data, offer(2, pets=COWS))
    assert report.blame == Blame.WORKER


async def test_data_that_never_fits_goes_elsewhere_and_costs_nothing_that_is_here(tmp_path: Path) -> None:
    async with a_server() as (_, client):
        cache = DataCache.open(tmp_path / "cache", len(BIG))
        data = Datasets(cache, client)
        await data.put_in_place(offer(1, pets=COWS), FetchProgress())
        await data.release("a_1")
        here = cache.complete()
        report = await failure(tmp_path / "state", client, data, offer(2, pets=PETS))
        assert report.blame == Blame.ELSEWHERE
        assert cache.complete() == here != []
        report = await failure(tmp_path / "state", client, None, offer(3, pets=PETS))
        assert report.blame == Blame.ELSEWHERE, "this worker keeps no data"


async def test_data_that_is_the_same_everywhere_is_the_jobs_fault(tmp_path: Path) -> None:
    """Nobody has a worker set aside with data that no worker can use: here by names longer than any system takes."""
    endless = {"/".join(["😀" * 63] * 16): b"cat"}
    async with a_server(endless) as (_, client):
        data = Datasets(DataCache.open(tmp_path / "cache", LIMIT), client)
        report = await failure(tmp_path / "state", client, data, offer(1, pets=endless))
        assert (report.blame, report.error) == (JOB, "the data could not be written: File name too long")
        report = await failure(tmp_path / "state", client, data, offer(2, pets=PETS))
        assert report.blame == JOB, "nobody has it any more"
