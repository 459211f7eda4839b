"""Compares several runs: how each went, and in what their configs differ."""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.configs.bundle import Bundle, read_bundle
from simpletuner_fleet.core.configs.bundle_diff import BundleComparison, compare_bundles
from simpletuner_fleet.core.errors import Invalid, no_such_job
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import JobFilter, View
from simpletuner_fleet.queries.read_models import SeenJob, with_reasons

MOST_RUNS = 8


class Comparison(Struct, frozen=True, kw_only=True):
    runs: list[SeenJob]
    bundles: list[Bundle]
    """In the same order."""
    differences: BundleComparison


async def compared(fleet: Fleet, job_ids: Sequence[str]) -> Comparison:
    job_ids = list(dict.fromkeys(job_ids))
    if len(job_ids) > MOST_RUNS:
        raise Invalid(f"At most {MOST_RUNS} runs can be compared at once.", path="$.job")
    now, standing = fleet.clock.now(), fleet.standing()

    def look(view: View) -> tuple[list[SeenJob], list[bytes]]:
        jobs = [_job(view, job_id) for job_id in job_ids]
        return with_reasons(view, jobs, now, standing), [view.job_bundle(job.id) or b"{}" for job in jobs]

    runs, stored = await fleet.read(look)
    return await asyncio.to_thread(_comparison, runs, stored)


async def found_job(fleet: Fleet, text: str) -> str | None:
    """Returns the newest job with this id, or with this text in its name; None where there is none."""

    def look(view: View) -> str | None:
        if view.job(text) is not None:
            return text
        jobs = view.jobs_page(JobFilter(text=text), None, 1)
        return jobs[0].id if jobs else None

    return await fleet.read(look)


def _comparison(runs: list[SeenJob], stored: list[bytes]) -> Comparison:
    bundles = [read_bundle(msgspec.json.decode(one)) for one in stored]
    return Comparison(runs=runs, bundles=bundles, differences=compare_bundles(bundles))


def _job(view: View, job_id: str) -> Job:
    job = view.job(job_id)
    if job is None:
        raise no_such_job(job_id)
    return job
