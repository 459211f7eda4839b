"""Assembles the whole route table: every path, who may call it, what it takes and what it answers."""

from collections.abc import Sequence

from simpletuner_fleet.http.access.auth import FailedProof
from simpletuner_fleet.http.api import queue_views as queue_views_api
from simpletuner_fleet.http.api.admin import accounts as accounts_api
from simpletuner_fleet.http.api.admin import approval_links as approval_links_api
from simpletuner_fleet.http.api.admin import approvals as approvals_api
from simpletuner_fleet.http.api.admin import audit as audit_api
from simpletuner_fleet.http.api.admin import logins as logins_api
from simpletuner_fleet.http.api.admin import own_tokens as own_tokens_api
from simpletuner_fleet.http.api.admin import quotas as quotas_api
from simpletuner_fleet.http.api.admin import roles as roles_api
from simpletuner_fleet.http.api.admin import secrets as secrets_api
from simpletuner_fleet.http.api.admin import sessions as sessions_api
from simpletuner_fleet.http.api.admin import teams as teams_api
from simpletuner_fleet.http.api.admin import tokens as tokens_api
from simpletuner_fleet.http.api.admin import workers as admin_api
from simpletuner_fleet.http.api.deps import Deps
from simpletuner_fleet.http.api.finding import editing as editing_api
from simpletuner_fleet.http.api.finding import marking as marking_api
from simpletuner_fleet.http.api.finding import matching as matching_api
from simpletuner_fleet.http.api.finding import palette as palette_api
from simpletuner_fleet.http.api.finding import saved_views as saved_views_api
from simpletuner_fleet.http.api.jobs import artifacts as artifacts_api
from simpletuner_fleet.http.api.jobs import comparing as comparing_api
from simpletuner_fleet.http.api.jobs import concurrency as concurrency_api
from simpletuner_fleet.http.api.jobs import configs as configs_api
from simpletuner_fleet.http.api.jobs import datasets as data_api
from simpletuner_fleet.http.api.jobs import jobs as jobs_api
from simpletuner_fleet.http.api.jobs import log_searches as log_search_api
from simpletuner_fleet.http.api.jobs import logs as logs_api
from simpletuner_fleet.http.api.jobs import metrics as metrics_api
from simpletuner_fleet.http.api.jobs import publishing as publishing_api
from simpletuner_fleet.http.api.jobs import queue as queue_api
from simpletuner_fleet.http.api.machines import machines as machines_api
from simpletuner_fleet.http.api.machines import pools as pools_api
from simpletuner_fleet.http.api.money import budgets as budgets_api
from simpletuner_fleet.http.api.money import prices as prices_api
from simpletuner_fleet.http.api.money import usage as usage_api
from simpletuner_fleet.http.api.notices import endpoints as notices_api
from simpletuner_fleet.http.api.older.table import in_older_words, with_older_words
from simpletuner_fleet.http.api.ownership import guarded
from simpletuner_fleet.http.api.scim import groups as scim_groups_api
from simpletuner_fleet.http.api.scim import service as scim_service_api
from simpletuner_fleet.http.api.scim import users as scim_users_api
from simpletuner_fleet.http.api.service import events as events_api
from simpletuner_fleet.http.api.service import health as health_api
from simpletuner_fleet.http.api.service import metrics_page
from simpletuner_fleet.http.api.service.openapi import documentation_routes
from simpletuner_fleet.http.api.sign_in import administration as sign_in_administration_api
from simpletuner_fleet.http.api.sign_in import ci as ci_api
from simpletuner_fleet.http.api.sign_in import providers as sign_in_api
from simpletuner_fleet.http.api.sign_in import terminals as terminals_api
from simpletuner_fleet.http.api.workers import calls as worker_api
from simpletuner_fleet.http.api.workers import log_intake as log_intake_api
from simpletuner_fleet.http.api.workers import stream as worker_stream
from simpletuner_fleet.http.api.workers import uploads as uploads_api
from simpletuner_fleet.http.edge.edge import Edge, EdgeSettings, ProblemPage, build_app
from simpletuner_fleet.http.edge.routes import Route
from simpletuner_fleet.orchestrator.workers import registration

ROUTES: tuple[Route, ...] = (
    *worker_api.ROUTES,
    *worker_stream.ROUTES,
    *uploads_api.ROUTES,
    *metrics_api.ROUTES,
    *queue_api.ROUTES,
    *queue_views_api.ROUTES,
    *concurrency_api.ROUTES,
    *jobs_api.ROUTES,
    *marking_api.ROUTES,
    *matching_api.ROUTES,
    *editing_api.ROUTES,
    *saved_views_api.ROUTES,
    *palette_api.ROUTES,
    *comparing_api.ROUTES,
    *logs_api.ROUTES,
    *log_search_api.ROUTES,
    *log_intake_api.ROUTES,
    *artifacts_api.ROUTES,
    *publishing_api.ROUTES,
    *configs_api.ROUTES,
    *data_api.ROUTES,
    *secrets_api.ROUTES,
    *notices_api.ROUTES,
    *events_api.ROUTES,
    *admin_api.ROUTES,
    *pools_api.ROUTES,
    *machines_api.ROUTES,
    *tokens_api.ROUTES,
    *logins_api.ROUTES,
    *sessions_api.ROUTES,
    *sign_in_api.ROUTES,
    *sign_in_administration_api.ROUTES,
    *terminals_api.ROUTES,
    *ci_api.ROUTES,
    *accounts_api.ROUTES,
    *scim_users_api.ROUTES,
    *scim_groups_api.ROUTES,
    *scim_service_api.ROUTES,
    *teams_api.ROUTES,
    *own_tokens_api.ROUTES,
    *quotas_api.ROUTES,
    *prices_api.ROUTES,
    *usage_api.ROUTES,
    *budgets_api.ROUTES,
    *roles_api.ROUTES,
    *approval_links_api.ROUTES,
    *approvals_api.ROUTES,
    *audit_api.ROUTES,
    *health_api.ROUTES,
    *metrics_page.ROUTES,
)


def build_api(
    deps: Deps,
    settings: EdgeSettings,
    further: Sequence[Route] = (),
    pages: Sequence[Route] = (),
    problem_page: ProblemPage | None = None,
) -> Edge:
    """Builds the application. `pages` are for people alone, and older names have ours beside them.

    The document for programs leaves both out.
    """

    async def note_failure(failure: FailedProof) -> None:
        refusal = registration.FailedRegistration(
            ip=failure.ip,
            why=f"{failure.path}: {failure.why}",
            code=failure.code,
            token_hash=failure.token_hash,
        )
        await registration.registration_failed(deps.fleet, refusal)

    ours = [*ROUTES, *further]
    table, older = with_older_words(ours), in_older_words(ours)
    deps.telemetry.watch(deps.fleet)
    edge = build_app(
        [guarded(row) for row in (*table, *documentation_routes(table), *older, *pages)],
        deps,
        credentials=deps.credentials,
        settings=settings,
        now=deps.fleet.clock.now,
        on_worker_auth_failure=note_failure,
        observe=deps.telemetry.requests.observe,
        problem_page=problem_page,
    )
    deps.end_streams_of = edge.end_streams_of
    forget_credentials = deps.fleet.on_doubt

    def doubt() -> None:
        if forget_credentials:
            forget_credentials()
        deps.background_tasks.start(edge.end_streams_in_doubt())

    deps.fleet.on_doubt = doubt
    return edge
