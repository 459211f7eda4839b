"""Compares several runs side by side."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.queue import shown
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.jobs import JobView
from simpletuner_fleet.queries.comparison import MOST_RUNS, compared


class CompareQuery(Struct, kw_only=True):
    job: Annotated[list[Name], Meta(max_length=MOST_RUNS)] = []
    """The id of a run; may be repeated."""


class RunValue(Struct, kw_only=True):
    job_id: str
    value: Any | UnsetType = UNSET
    """Left out where this run's config does not have the field."""


class DifferenceView(Struct, kw_only=True):
    path: str
    runs: list[RunValue]


class ComparisonView(Struct, kw_only=True):
    jobs: list[JobView]
    differences: list[DifferenceView]
    """The fields of their configs that are not the same in all of them."""
    left_out: int = 0
    """How many more fields differ: only the first are listed."""
    left_out_at_least: bool = False
    """Whether there are even more than `left_out` says: nobody counts them all."""


async def compare(call: Call[None]) -> ComparisonView:
    comparison = await compared(deps_of(call).fleet, call.query.job)
    ids = [seen.job.id for seen in comparison.runs]
    return ComparisonView(
        jobs=[shown(seen) for seen in comparison.runs],
        differences=[
            DifferenceView(
                path=one.path,
                runs=[RunValue(job_id=id, value=value) for id, value in zip(ids, one.values, strict=True)],
            )
            for one in comparison.differences.fields
        ],
        left_out=comparison.differences.left_out,
        left_out_at_least=comparison.differences.left_out_at_least,
    )


ROUTES = [
    Route(
        "GET",
        "/api/compare",
        compare,
        "jobs.read",
        answer=ComparisonView,
        summary="Up to eight runs side by side, and in what their configs differ",
        query=CompareQuery,
        tags=("jobs",),
    )
]
