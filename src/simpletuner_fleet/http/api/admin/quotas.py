"""Lets administrators set quotas, and shows everybody what is used of those that concern them."""

from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.core.people.quotas import OF_MONEY, Quota, QuotaBook, whose
from simpletuner_fleet.core.placement.usage import UseLedger
from simpletuner_fleet.engine.memory.organisation import Organisation
from simpletuner_fleet.http.api.deps import deps_of, visibility_scope_of
from simpletuner_fleet.http.edge.routes import ANY_USER, Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator.organising import quotas
from simpletuner_fleet.orchestrator.organising.quotas import NewQuota, QuotaChange
from simpletuner_fleet.storage.uploads.stored_quotas import stored_standings

TAGS = ("quotas",)
PERMISSION = "admin.limits"
QUOTAS = "/api/quotas"


class QuotaView(Struct, kw_only=True):
    id: str
    kind: str
    scope: str
    subject: str
    whose: str
    """The owner by name."""
    ceiling: int | float
    """Of money in millionths of the currency's unit."""
    action: str
    warn_at: float
    unit: str = ""
    """The currency, where it is money."""


class QuotasView(Struct):
    quotas: list[QuotaView]


class StandingView(QuotaView, kw_only=True):
    used: int | float
    left: int | float
    frees_at: str | None
    """When some of it comes back by itself; null: when a job ends, or something stored is deleted."""
    at_least: bool
    """Of money: some was used at a price that nobody knows, and is not in it."""


class OwnQuotasView(Struct):
    quotas: list[StandingView]


class NewQuotaBody(NewQuota, frozen=True, kw_only=True, forbid_unknown_fields=True):
    subject: Name = ""


class QuotaChangeBody(QuotaChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes a change of a quota. What is left out stays as it is."""


async def list_quotas(call: Call[None]) -> QuotasView:
    return QuotasView([_view(call, quota) for quota in deps_of(call).fleet.organisation.quotas])


async def own_quotas(call: Call[None]) -> OwnQuotasView:
    return OwnQuotasView(await standings(call))


async def create_quota(call: Call[NewQuotaBody]) -> QuotaView:
    return _view(call, await quotas.create_quota(deps_of(call).fleet, call.body, call.actor))


async def change_quota(call: Call[QuotaChangeBody]) -> QuotaView:
    changed = await quotas.change_quota(deps_of(call).fleet, call.path["id"], call.body, call.actor)
    return _view(call, changed)


async def delete_quota(call: Call[None]) -> Done:
    await quotas.delete_quota(deps_of(call).fleet, call.path["id"], call.actor)
    return Done(id=call.path["id"])


async def standings(call: Call[Any]) -> list[StandingView]:
    """Returns every quota that the caller's own jobs are counted in, and those of the caller's teams."""
    fleet, scope = deps_of(call).fleet, visibility_scope_of(call)
    organisation, book = fleet.organisation, fleet.book or QuotaBook((), {}, {}, UseLedger())
    owner, now = call.principal.owns_as, fleet.clock.now()
    counted = {
        (quota.id, account): (quota, account)
        for team_id in ("", *sorted(scope.teams))
        for quota, account in book.concerning(owner, team_id)
    }
    seen = {key: book.standing(quota, account, now) for key, (quota, account) in counted.items()}
    if book.counts_storage:
        stored = await fleet.read(lambda view: stored_standings(view, counted.values()))
        seen |= {(one.quota.id, one.account): one for one in stored}
    return [
        StandingView(
            **_fields(one.quota, organisation),
            used=one.used,
            left=one.left,
            frees_at=rfc3339(one.frees_at),
            at_least=one.at_least,
        )
        for one in seen.values()
    ]


def _view(call: Call[Any], quota: Quota) -> QuotaView:
    return QuotaView(**_fields(quota, deps_of(call).fleet.organisation))


def _fields(quota: Quota, organisation: Organisation) -> dict[str, Any]:
    return {
        "id": quota.id,
        "kind": quota.kind,
        "scope": quota.scope,
        "subject": quota.subject,
        "whose": whose(quota, organisation.names),
        "ceiling": quota.ceiling,
        "action": quota.action,
        "warn_at": quota.warn_at,
        "unit": organisation.prices.currency if quota.kind in OF_MONEY else "",
    }


ROUTES = [
    Route("GET", QUOTAS, list_quotas, PERMISSION, answer=QuotasView, summary="All quotas", tags=TAGS),
    Route(
        "GET",
        f"{QUOTAS}/me",
        own_quotas,
        ANY_USER,
        answer=OwnQuotasView,
        summary="The quotas that concern the caller, with what is used and what is left",
        tags=TAGS,
    ),
    Route(
        "POST",
        QUOTAS,
        create_quota,
        PERMISSION,
        NewQuotaBody,
        QuotaView,
        "Set a quota",
        status=201,
        tags=TAGS,
    ),
    Route(
        "PATCH",
        f"{QUOTAS}/{{id}}",
        change_quota,
        PERMISSION,
        QuotaChangeBody,
        QuotaView,
        "Change a quota's ceiling, or what happens there",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        f"{QUOTAS}/{{id}}",
        delete_quota,
        PERMISSION,
        answer=Done,
        summary="Take a quota away",
        tags=TAGS,
    ),
]
