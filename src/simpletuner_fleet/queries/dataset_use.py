"""Finds who uses a dataset: the jobs that name it, as far as the caller sees them, and the workers with it."""

from msgspec import Struct

from simpletuner_fleet.core.jobs.finding import NEWEST_FIRST
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import JobFilter, View

JOBS_SHOWN = 10


class DatasetUse(Struct, frozen=True, kw_only=True):
    jobs: list[Job]
    """The newest first, a few of them."""
    job_count: int
    workers: list[str]
    """Names of those that have it in their cache."""


async def use_of(fleet: Fleet, dataset_id: str, *, jobs: bool) -> DatasetUse:
    """Returns the use of a dataset; `jobs` tells whether the caller may look at jobs at all."""
    where = JobFilter(dataset=dataset_id)

    def look(view: View) -> DatasetUse:
        return DatasetUse(
            jobs=view.jobs_sorted(where, NEWEST_FIRST, None, JOBS_SHOWN) if jobs else [],
            job_count=sum(view.jobs_matching(where).values()) if jobs else 0,
            workers=[worker.name for worker in view.workers() if dataset_id in worker.datasets],
        )

    return await (fleet.scan if jobs else fleet.read)(look)
