"""Finds a few jobs and workers by a part of their name or id, for a command palette to offer while somebody types."""

from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.jobs.finding import JobSearch
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.times import read_moment
from simpletuner_fleet.queries import finding

MOST_OF_EACH = 8
SEES_WORKERS = "admin.workers"


class PaletteQuery(Struct, kw_only=True):
    q: Annotated[str, Meta(max_length=200)] = ""


class PaletteItem(Struct, kw_only=True):
    kind: str
    """job or worker."""
    id: str
    title: str
    status: str
    href: str


class PaletteAnswer(Struct):
    items: list[PaletteItem]


async def look_up(call: Call[None]) -> PaletteAnswer:
    fleet, text = deps_of(call).fleet, call.query.q.strip()
    if not text:
        return PaletteAnswer([])
    moment = partial(read_moment, now=fleet.clock.now())
    newest = await finding.few(fleet, JobSearch(q=text), moment, MOST_OF_EACH)
    jobs = [
        PaletteItem(
            kind="job",
            id=job.id,
            title=job.name or job.config_name,
            status=job.state,
            href=f"/jobs/{job.id}",
        )
        for job in newest
    ]
    workers = (
        await finding.workers_named(fleet, text, MOST_OF_EACH) if call.principal.can(SEES_WORKERS) else []
    )
    return PaletteAnswer([*jobs, *map(_worker_item, workers)])


def _worker_item(seen: tuple[Worker, str]) -> PaletteItem:
    worker, status = seen
    return PaletteItem(
        kind="worker",
        id=worker.id,
        title=worker.name,
        status=status,
        href=f"/admin/workers/{worker.id}",
    )


ROUTES = [
    Route(
        "GET",
        "/api/palette",
        look_up,
        "jobs.read",
        answer=PaletteAnswer,
        summary="A few jobs and workers by name or id",
        query=PaletteQuery,
        tags=("jobs",),
    )
]
