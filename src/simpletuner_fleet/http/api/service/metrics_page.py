"""`/metrics` for Prometheus: for any API token, for this machine itself, or for all if the operator says so."""

from simpletuner_fleet.http.access.auth import Authenticator
from simpletuner_fleet.http.api import telemetry
from simpletuner_fleet.http.api.deps import whole_deps
from simpletuner_fleet.http.edge.admission import is_local_call
from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Reply, Route
from simpletuner_fleet.queries import read_models


async def metrics(call: Call[None]) -> Reply:
    deps = whole_deps(call)
    if not deps.metrics_public and not is_local_call(call.ip, call.headers):
        await Authenticator(deps.credentials, deps.fleet.clock.now).user(call.headers)
    page = deps.telemetry.page(
        jobs=await deps.fleet.read(lambda view: view.job_counts()),
        workers=await read_models.worker_counts(deps.fleet),
        streams=deps.hub.worker_count,
        watchers=deps.hub.watcher_count,
        commits=deps.fleet.commits,
    )
    return Reply(body=page, content_type=telemetry.CONTENT_TYPE)


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
