"""Checks quotas of hours, money and storage now and then, and logs once which are nearly used or reached."""

from typing import Any

import msgspec

from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.people.quota_news import (
    COUNTED_BY_TIME,
    WATCHED,
    KnownLevel,
    QuotaLevel,
    level_of,
    quota_news,
)
from simpletuner_fleet.core.people.quotas import QuotaBook, QuotaStanding, quota_params
from simpletuner_fleet.core.placement.usage import person, team
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.kept_settings import QUOTAS_TOLD, read_setting
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.storage.uploads.stored_quotas import storage_book, stored_by_owner

LOOK_S = 30.0


async def watch_quotas(fleet: Fleet) -> None:
    """Checks the quotas when that is due. It costs nothing where there is no such quota."""
    now = fleet.clock.now()
    if abs(now - fleet.quotas_looked_at) < LOOK_S:
        return
    fleet.quotas_looked_at = now
    if any(quota.kind in WATCHED for quota in fleet.organisation.quotas):
        book = storage_book(fleet.organisation)
        stored = await fleet.read(lambda view: stored_by_owner(view, book)) if book else []
        await fleet.act(lambda transaction: _look(transaction, stored))


def _look(transaction: Transaction, of_storage: list[QuotaStanding]) -> None:
    """Records which quotas are nearly used or reached.

    What everybody has stored was read before, beside the writer.
    """
    book = transaction.index.roster.book
    if book is None:
        return
    # Where nobody knows who was told, they are told once more: too often is better than never.
    known = read_setting(transaction.tx, QUOTAS_TOLD, dict[str, KnownLevel], None) or {}
    standings = [
        book.standing(quota, account, transaction.now)
        for quota in book.quotas
        if quota.kind in COUNTED_BY_TIME
        for account in book.accounts_of(quota)
    ]
    kept = {quota.id: quota for quota in book.quotas}
    standings += [one for one in of_storage if kept.get(one.quota.id) == one.quota]
    news, after = quota_news(standings, known)
    for standing in news:
        transaction.record(_event(book, standing))
    if after != known:
        transaction.tx.put_setting(QUOTAS_TOLD, msgspec.json.encode(after).decode())


def _event(book: QuotaBook, standing: QuotaStanding) -> Event:
    reached = level_of(standing) is QuotaLevel.REACHED
    params = quota_params(book, standing)
    said: dict[str, Any] = {name: params[name] for name in ("kind", "whose", "used", "ceiling")}
    return Event(
        type=EventType.QUOTA_REACHED if reached else EventType.QUOTA_NEARLY_USED,
        actor=ORCHESTRATOR,
        target_type="quota",
        target_id=standing.quota.id,
        details={**said, **_whose_account(standing.account), "why": f"{said['used']} / {said['ceiling']}"},
    )


def _whose_account(account: str) -> dict[str, str]:
    """Returns who is told: the person, or the team whose leads are told.

    For all accounts together it is empty: then those are told who follow everybody's.
    """
    for kind, prefix in (("owner", person("")), ("team", team(""))):
        if account.startswith(prefix):
            return {kind: account.removeprefix(prefix)}
    return {}
