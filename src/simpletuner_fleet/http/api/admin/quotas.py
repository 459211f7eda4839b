"""Lets administrators set quotas, and shows everybody what is used of those that concern them."""

from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.core.people.quotas import OF_MONEY, Quota, QuotaStanding, whose
from simpletuner_fleet.engine.memory.organisation import Organisation
from simpletuner_fleet.engine.memory.setting_documents import QUOTA_PREFIX
from simpletuner_fleet.engine.transaction import Transaction
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
    unreadable: list[str]
    """The ids of quotas that cannot be read and are not in the list; while there is one no job starts."""


class StandingView(QuotaView, kw_only=True):
    used: int | float
    left: int | float
    frees_at: str | None
    """When some of it comes back by itself; null: when a job ends, or something stored is deleted."""
    at_least: bool
    """Of money: some was used at a price that nobody knows, and is not in it."""


class OwnQuotasView(Struct):
    quotas: list[StandingView]
    unreadable: list[str]
    """The ids of quotas that cannot be read: one of them may concern the caller."""


class NewQuotaBody(NewQuota, frozen=True, kw_only=True, forbid_unknown_fields=True):
    subject: Name = ""


class QuotaChangeBody(QuotaChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes a change of a quota. What is left out stays as it is."""


async def list_quotas(call: Call[None]) -> QuotasView:
    organisation = deps_of(call).fleet.organisation
    return QuotasView(
        [_view(call, quota) for quota in organisation.quotas],
        unreadable=organisation.unreadable_ids(QUOTA_PREFIX),
    )


async def own_quotas(call: Call[None]) -> OwnQuotasView:
    unreadable = deps_of(call).fleet.organisation.unreadable_ids(QUOTA_PREFIX)
    return OwnQuotasView(await standings(call), unreadable=unreadable)


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
    fleet, organisation = deps_of(call).fleet, deps_of(call).fleet.organisation
    if not organisation.quotas:
        return []
    # Within a step: what is used changes while the writer works, and is not known while rows are loaded.
    seen = await fleet.act(lambda transaction: _used_by_own(call, transaction))
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


def _used_by_own(call: Call[Any], transaction: Transaction) -> dict[tuple[str, str], QuotaStanding]:
    """Returns the standing of each, by quota and account, with what is stored."""
    counted = _own(call, transaction)
    stored = stored_standings(transaction.tx, [(one.quota, one.account) for one in counted])
    return {(one.quota.id, one.account): one for one in (*counted, *stored)}


def _own(call: Call[Any], transaction: Transaction) -> list[QuotaStanding]:
    book, owner = transaction.index.roster.book, call.principal.owns_as
    if book is None:
        return []
    concerning = {
        (quota.id, account): (quota, account)
        for team_id in ("", *sorted(visibility_scope_of(call).teams))
        for quota, account in book.concerning(owner, team_id)
    }
    return [book.standing(quota, account, transaction.now) for quota, account in concerning.values()]


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
