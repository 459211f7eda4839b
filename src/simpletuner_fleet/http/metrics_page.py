"""`/metrics` for Prometheus: for any API token, for this machine itself, or for all if the operator says so."""

from simpletuner_fleet.http import telemetry
from simpletuner_fleet.http.auth import Authenticator
from simpletuner_fleet.http.deps import deps
from simpletuner_fleet.http.edge import is_local_call
from simpletuner_fleet.http.routes import PUBLIC, Call, Reply, Route
from simpletuner_fleet.orchestrator import read_models


async def metrics(call: Call[None]) -> Reply:
    house = deps(call)
    if not house.metrics_public and not is_local_call(call.ip, call.headers):
        await Authenticator(house.credentials, house.fleet.clock.now).user(call.headers)
    page = house.telemetry.page(
        jobs=await house.fleet.read(lambda view: view.job_counts()),
        workers=await read_models.worker_counts(house.fleet),
        streams=house.hub.worker_count,
        watchers=house.hub.watcher_count,
        commits=house.fleet.commits,
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
