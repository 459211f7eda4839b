"""Computes the standing of quotas on stored bytes from what is tallied beside the rows of all files."""

from collections.abc import Iterable

from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.people.quotas import (
    Quota,
    QuotaAction,
    QuotaBook,
    QuotaKind,
    QuotaStanding,
    is_nearly_reached,
    stored_standing,
)
from simpletuner_fleet.core.placement.usage import EVERYBODY, UseLedger, person, team
from simpletuner_fleet.engine.memory.organisation import Organisation
from simpletuner_fleet.ports import View


def storage_book(organisation: Organisation) -> QuotaBook | None:
    """Returns the book of the quotas on stored bytes; None where there are none.

    It is whole while rows are still loaded, unlike the engine's, and does not change while it is read.
    """
    quotas = [quota for quota in organisation.quotas if quota.kind is QuotaKind.STORED_BYTES]
    return QuotaBook(quotas, organisation.roles, organisation.names, UseLedger()) if quotas else None


def stored_standings(view: View, counted: Iterable[tuple[Quota, str]]) -> list[QuotaStanding]:
    """Returns the standing of each quota on stored bytes; a quota comes with its account."""
    return [
        stored_standing(quota, account, stored_bytes(view, account))
        for quota, account in counted
        if quota.kind is QuotaKind.STORED_BYTES
    ]


def stored_by_owner(view: View, book: QuotaBook) -> list[QuotaStanding]:
    """Returns the standing of every quota on stored bytes, for everybody who has stored something."""
    owners = view.stored_bytes_by_owner()
    standings = []
    for quota in book.quotas:
        if quota.is_of_one_account:
            standings += stored_standings(view, [(quota, book.accounts_of(quota)[0])])
            continue
        concerned = (one for one in owners if not quota.subject or book.roles.get(one) == quota.subject)
        standings += [stored_standing(quota, person(one), owners[one]) for one in sorted(concerned)]
    return standings


def approvals_for_storage(view: View, book: QuotaBook, job: Job) -> list[QuotaStanding]:
    """Returns the quotas on stored bytes that are used up and admit a further job only with an approval."""
    asking = [one for one in _concerning(book, job) if one[0].action is QuotaAction.APPROVE]
    return [one for one in stored_standings(view, asking) if one.used >= one.quota.ceiling]


def storage_nearly_used(view: View, book: QuotaBook, job: Job) -> list[QuotaStanding]:
    return [one for one in stored_standings(view, _concerning(book, job)) if is_nearly_reached(one)]


def storage_refused(view: View, book: QuotaBook, job: Job, more_bytes: int) -> QuotaStanding | None:
    """Returns the quota into which so many more bytes do not fit.

    One that only warns or needs approval stops no upload.
    """
    refusing = [one for one in _concerning(book, job) if one[0].action is QuotaAction.REFUSE]
    for one in stored_standings(view, refusing):
        if one.used + more_bytes > one.quota.ceiling:
            return one
    return None


def _concerning(book: QuotaBook, job: Job) -> list[tuple[Quota, str]]:
    return list(book.concerning(job.owner, job.team)) if book.counts_storage else []


def stored_bytes(view: View, account: str) -> int:
    if account == EVERYBODY:
        return view.stored_bytes_of_jobs()
    if account.startswith(team("")):
        return view.stored_bytes_of_team(account.removeprefix(team("")))
    return view.stored_bytes_of(account.removeprefix(person("")))
