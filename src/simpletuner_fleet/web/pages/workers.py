"""Shows Administration → Workers: every worker, what it runs, how full it is, and when it last reported."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from simpletuner_fleet.core.workers.worker import Connection, Worker, WorkerStatus, WorkerType
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.queries.worker_details import machines
from simpletuner_fleet.web.frame.page import page, spoken, with_query
from simpletuner_fleet.web.parts.worker_rows import latest_of, status_names, worker_row

PERMISSION = "admin.workers"
PAGE_SIZE = 100
TABS = ("", *(status.value for status in WorkerStatus))


class WorkersPageQuery(Struct, kw_only=True):
    status: Literal["", "connecting", "idle", "busy", "draining", "offline"] = ""
    q: Annotated[str, Meta(max_length=200)] = ""
    page: Annotated[int, Meta(ge=1, le=10_000)] = 1


async def workers(call: Call[None]) -> Reply:
    fleet, query = deps_of(call).fleet, call.query
    typed = query.q.strip().casefold()

    def fits(worker: Worker, status: str) -> bool:
        return query.status in ("", status) and (not typed or typed in searched_text(worker))

    def folds(worker: Worker, status: str) -> bool:
        """Tells whether to fold the worker away: one that is ephemeral is expected to leave."""
        has_left = worker.connection is Connection.OFFLINE and worker.worker_type is WorkerType.EPHEMERAL
        return has_left and not query.status and not typed

    result = await machines(fleet, fits, folds, query.page - 1, PAGE_SIZE)
    now = fleet.clock.now()
    with spoken(call):
        return page(
            call,
            "workers/workers.html",
            query=query,
            tabs=[
                (name, result.counts.get(name, 0) if name else sum(result.counts.values())) for name in TABS
            ],
            total=sum(result.counts.values()),
            rows=[worker_row(info, latest_of(fleet, info.worker.id, now)) for info in result.shown],
            folded=[worker_row(info, latest_of(fleet, info.worker.id, now)) for info in result.folded],
            before=_turned(query, -1) if query.page > 1 else None,
            after=_turned(query, 1) if result.more else None,
            kept_s=fleet.policy.ephemeral_ttl_s,
            status_names=status_names(),
            with_query=with_query,
        )


def searched_text(worker: Worker) -> str:
    labels = " ".join(f"{key}={value}" for key, value in worker.effective_labels.items())
    gpus = " ".join({gpu.name for gpu in worker.gpus})
    return f"{worker.name} {worker.id} {labels} {gpus} {worker.address} {worker.agent_version}".casefold()


def _turned(query: WorkersPageQuery, by: int) -> str:
    return with_query("/admin/workers", status=query.status, q=query.q.strip(), page=query.page + by)


ROUTES = (Route("GET", "/admin/workers", workers, PERMISSION, summary="Workers", query=WorkersPageQuery),)
