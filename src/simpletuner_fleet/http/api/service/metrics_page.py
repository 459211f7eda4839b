"""Serves `/metrics` for Prometheus, to any API token and to this machine, or to all if the operator says so."""

import asyncio

from simpletuner_fleet.http.access.auth import Authenticator
from simpletuner_fleet.http.api.deps import whole_deps
from simpletuner_fleet.http.api.service.kept_figures import KeptFigures
from simpletuner_fleet.http.api.telemetry import CONTENT_TYPE, FleetSeen
from simpletuner_fleet.http.edge.admission import is_local_call
from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Reply, Route
from simpletuner_fleet.queries import figures


async def metrics(call: Call[None]) -> Reply:
    deps = whole_deps(call)
    if not deps.metrics_public and not is_local_call(call.ip, call.headers):
        await Authenticator(deps.credentials, deps.fleet.clock.now).user(call.headers)
    kept: KeptFigures = deps.kept_figures
    fleet = deps.fleet
    jobs, of_fleet, stored = await asyncio.gather(
        kept.jobs.of(lambda: fleet.read_now(lambda view: view.job_counts())),
        kept.fleet.of(lambda: figures.fleet_figures(fleet)),
        kept.stored.of(lambda: figures.stored_figures(fleet)),
    )
    seen = FleetSeen(
        jobs=jobs,
        streams=deps.hub.worker_count,
        watchers=deps.hub.watcher_count,
        leads=fleet.leads(),
        figures=of_fleet,
        figures_age_s=kept.fleet.age_s,
        stored=stored,
        disk=deps.space.disk(),
        direct=deps.storage.direct_in_use is not None,
        direct_bytes=deps.direct.stored_bytes if deps.direct else 0,
    )
    return Reply(body=deps.telemetry.page(seen), content_type=CONTENT_TYPE)


ROUTES = [
    Route(
        "GET",
        "/metrics",
        metrics,
        PUBLIC,
        summary="Counters for Prometheus; needs an API token unless the call comes from this machine",
        tags=("server",),
    )
]
