"""Lets administrators set quotas and shares. Each act is one transaction with its audit entry."""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Amount, Whole
from simpletuner_fleet.core.errors import Conflict, Invalid, NotFound
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.people.quotas import Quota, QuotaAction, QuotaKind, QuotaScope, checked_quota
from simpletuner_fleet.core.placement.shares import FairShare
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.setting_documents import FAIR_SHARE_SETTING, QUOTA_PREFIX
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.organising.naming import known_person, known_team
from simpletuner_fleet.orchestrator.organising.unreadable import delete_if_unreadable

MAX_QUOTAS = 1_000
LEAST_HALF_LIFE_S = 60.0
MOST_HALF_LIFE_S = 3650 * 86_400.0


class NewQuota(Struct, frozen=True, kw_only=True):
    kind: QuotaKind
    scope: QuotaScope
    subject: str = ""
    """Name or id of the person or team, or the role; empty for each person and for all."""
    ceiling: Whole | Amount
    """Of money in millionths of the currency's unit, and whole."""
    action: QuotaAction = QuotaAction.WAIT
    warn_at: Amount = 0.8


class QuotaChange(Struct, frozen=True, kw_only=True):
    """Describes a change of a quota. What is left out stays as it is."""

    ceiling: Whole | Amount | UnsetType = UNSET
    action: QuotaAction | UnsetType = UNSET
    warn_at: Amount | UnsetType = UNSET


async def create_quota(fleet: Fleet, asked: NewQuota, actor: Actor) -> Quota:
    def step(transaction: Transaction) -> Quota:
        if len(transaction.organisation.quotas) >= MAX_QUOTAS:
            raise Conflict(f"There are {MAX_QUOTAS} quotas already, and no more are kept.")
        quota = Quota(
            id=transaction.ids.new("q"),
            kind=asked.kind,
            scope=asked.scope,
            subject=_subject(transaction, asked.scope, asked.subject),
            ceiling=asked.ceiling,
            action=asked.action,
            warn_at=asked.warn_at,
            created_at=transaction.now,
        )
        return _save(transaction, checked_quota(quota), EventType.QUOTA_SET, actor)

    return await fleet.act(step)


async def change_quota(fleet: Fleet, quota_id: str, change: QuotaChange, actor: Actor) -> Quota:
    """Changes a quota. A lower ceiling stops nothing that runs; a higher one starts what waited for it."""

    def step(transaction: Transaction) -> Quota:
        before = _existing(transaction, quota_id)
        asked = {
            field: value
            for field in ("ceiling", "action", "warn_at")
            if (value := getattr(change, field)) is not UNSET
        }
        after = checked_quota(replace(before, **asked))
        if after == before:
            return before
        return _save(transaction, after, EventType.QUOTA_SET, actor, was=before.ceiling)

    return await fleet.act(step)


async def delete_quota(fleet: Fleet, quota_id: str, actor: Actor) -> None:
    """Deletes a quota, also one that cannot be read."""

    def step(transaction: Transaction) -> None:
        deleted = EventType.QUOTA_DELETED
        if delete_if_unreadable(transaction, QUOTA_PREFIX, quota_id, deleted, "quota", actor):
            return
        quota = _existing(transaction, quota_id)
        transaction.tx.delete_setting(QUOTA_PREFIX + quota.id)
        transaction.organisation_changed()
        transaction.record(_event(deleted, quota, actor))

    await fleet.act(step)


def set_fair_share_within(transaction: Transaction, chosen: FairShare, actor: Actor) -> FairShare:
    if not LEAST_HALF_LIFE_S <= chosen.half_life_s <= MOST_HALF_LIFE_S:
        raise Invalid(
            "A half-life is at least a minute, and at most ten years.", path="$.fair_share_half_life_s"
        )
    was = transaction.organisation.fair_share
    if was == chosen:
        return chosen
    transaction.tx.put_setting(FAIR_SHARE_SETTING, msgspec.json.encode(chosen).decode())
    transaction.organisation_changed()
    transaction.record(
        Event(
            type=EventType.LIMITS_SET,
            actor=actor,
            target_type="limits",
            target_id=FAIR_SHARE_SETTING,
            details={"fair_share": msgspec.to_builtins(chosen), "was": msgspec.to_builtins(was)},
        )
    )
    return chosen


def _subject(transaction: Transaction, scope: QuotaScope, called: str) -> str:
    if scope is QuotaScope.PERSON:
        return known_person(transaction.tx, called, "$.subject")
    if scope is QuotaScope.TEAM:
        return known_team(transaction, called, "$.subject")
    roles = (*Role, *transaction.organisation.own_roles)
    if scope is QuotaScope.ROLE and called not in roles:
        raise Invalid(f"A role is one of {', '.join(roles)}.", path="$.subject")
    return called


def _existing(transaction: Transaction, quota_id: str) -> Quota:
    for quota in transaction.organisation.quotas:
        if quota.id == quota_id:
            return quota
    raise NotFound(f"There is no quota {quota_id}.", next_step="See them with 'simpletuner quotas list'.")


def _save(transaction: Transaction, quota: Quota, kind: EventType, actor: Actor, **details: Any) -> Quota:
    transaction.tx.put_setting(QUOTA_PREFIX + quota.id, msgspec.json.encode(quota).decode())
    transaction.organisation_changed()
    transaction.record(_event(kind, quota, actor, **details))
    return quota


def _event(kind: EventType, quota: Quota, actor: Actor, **details: Any) -> Event:
    said = {"kind": quota.kind, "scope": quota.scope, "subject": quota.subject, "ceiling": quota.ceiling}
    return Event(
        type=kind,
        actor=actor,
        target_type="quota",
        target_id=quota.id,
        details={**said, "action": quota.action, **details},
    )
