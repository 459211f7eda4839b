"""The whole table: every path there is, who may call it, what it takes and what it answers."""

from collections.abc import Sequence

from simpletuner_fleet.http import (
    accounts_api,
    admin_api,
    artifacts_api,
    audit_api,
    configs_api,
    data_api,
    events_api,
    health_api,
    jobs_api,
    log_intake_api,
    log_search_api,
    logins_api,
    logs_api,
    metrics_api,
    metrics_page,
    queue_api,
    secrets_api,
    tokens_api,
    uploads_api,
    worker_api,
    worker_stream,
)
from simpletuner_fleet.http.auth import FailedProof
from simpletuner_fleet.http.deps import Deps
from simpletuner_fleet.http.edge import Edge, EdgeSettings, ProblemPage, build_app
from simpletuner_fleet.http.openapi import documentation_routes
from simpletuner_fleet.http.routes import Route
from simpletuner_fleet.orchestrator import attendance

ROUTES: tuple[Route, ...] = (
    *worker_api.ROUTES,
    *worker_stream.ROUTES,
    *uploads_api.ROUTES,
    *metrics_api.ROUTES,
    *queue_api.ROUTES,
    *jobs_api.ROUTES,
    *logs_api.ROUTES,
    *log_search_api.ROUTES,
    *log_intake_api.ROUTES,
    *artifacts_api.ROUTES,
    *configs_api.ROUTES,
    *data_api.ROUTES,
    *secrets_api.ROUTES,
    *events_api.ROUTES,
    *admin_api.ROUTES,
    *tokens_api.ROUTES,
    *logins_api.ROUTES,
    *accounts_api.ROUTES,
    *audit_api.ROUTES,
    *health_api.ROUTES,
    *metrics_page.ROUTES,
)


def build_api(
    house: Deps,
    settings: EdgeSettings,
    further: Sequence[Route] = (),
    pages: Sequence[Route] = (),
    problem_page: ProblemPage | None = None,
) -> Edge:
    """`pages` are for people alone: the document for programs leaves them out."""

    async def note_failure(failure: FailedProof) -> None:
        refusal = attendance.Refusal(
            ip=failure.ip,
            why=f"{failure.path}: {failure.why}",
            code=failure.code,
            token_hash=failure.token_hash,
        )
        await attendance.registration_failed(house.fleet, refusal)

    table = [*ROUTES, *further]
    house.fleet.on_first_offer = house.telemetry.first_offer
    edge = build_app(
        [*table, *documentation_routes(table), *pages],
        house,
        credentials=house.credentials,
        settings=settings,
        now=house.fleet.clock.now,
        on_worker_auth_failure=note_failure,
        observe=house.telemetry.requests.observe,
        problem_page=problem_page,
    )
    house.end_streams_of = edge.end_streams_of
    return edge
