"""Looks up once what was used before the counting began, where a quota or a share needs it."""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob
from simpletuner_fleet.core.people.quotas import Quota, QuotaBook, QuotaKind
from simpletuner_fleet.core.placement.shares import HALF_LIVES_KEPT, Shares
from simpletuner_fleet.core.placement.usage import HOUR_S, UseLedger
from simpletuner_fleet.engine.memory.organisation import Organisation
from simpletuner_fleet.ports import JobFilter, View

MOST_JOBS_AN_HOUR = 1_000_000
NAMED_AT_ONCE = 500
OF_WHAT_WAS_USED = (
    *(QuotaKind.GPU_HOURS_DAY, QuotaKind.GPU_HOURS_MONTH),
    *(QuotaKind.MONEY_DAY, QuotaKind.MONEY_MONTH),
)


def book_of(view: View, organisation: Organisation, usage: UseLedger, now: float) -> QuotaBook | None:
    """Returns the book of quotas; None where there are no quotas."""
    quotas = organisation.quotas
    if not quotas:
        return None
    if not usage.knows_charges and _any_of(quotas, *OF_WHAT_WAS_USED):
        usage.take_charges(view.charges_since(usage.month.begins))
    if not usage.knows_last_hour and _any_of(quotas, QuotaKind.JOBS_PER_HOUR):
        deleted = (one for one in view.deleted_jobs_since(now - HOUR_S) if one.created_at >= now - HOUR_S)
        recent = view.jobs_page(JobFilter(created_since=now - HOUR_S), None, MOST_JOBS_AN_HOUR)
        usage.take_submissions(sorted((*recent, *deleted), key=lambda one: one.created_at))
        usage.take_starts(_starts_since(view, now - HOUR_S))
        usage.knows_last_hour = True
    book = QuotaBook(quotas, organisation.roles, organisation.names, usage, organisation.prices.currency)
    book.now = now  # it may be asked in the very step that changed the quotas
    return book


def _starts_since(view: View, at: float) -> list[tuple[float, Job | DeletedJob]]:
    gone = [
        (one.first_offered_at, one)
        for one in view.deleted_jobs_since(at)
        if one.first_offered_at is not None and one.first_offered_at > at
    ]
    first = (one for one in view.attempts_since(at, MOST_JOBS_AN_HOUR) if one.number == 1)
    begun = {one.job_id: one.offered_at for one in first if one.offered_at > at}
    there = [(begun[job.id], job) for job in _jobs_of(view, list(begun))]
    return sorted((*there, *gone), key=itemgetter(0))


def _jobs_of(view: View, ids: Sequence[str]) -> Iterator[Job]:
    """Yields those that can be read, without a question to the database for each."""
    for at in range(0, len(ids), NAMED_AT_ONCE):
        some = tuple(ids[at : at + NAMED_AT_ONCE])
        yield from view.jobs_page(JobFilter(ids=some), None, len(some))


def shares_of(
    view: View, organisation: Organisation, usage: UseLedger, now: float, known: Shares | None
) -> Shares | None:
    """Returns the shares, those that are known where they count the same; None where fair share is off."""
    chosen = organisation.fair_share
    if not chosen.enabled:
        return None
    weights = {team.id: team.weight for team in organisation.teams.values()}
    if known is not None and known.half_life_s == chosen.half_life_s:
        known.weigh(weights)
        return known
    shares = Shares(chosen.half_life_s, weights, now)
    shares.take_charges(view.charges_since(now - HALF_LIVES_KEPT * chosen.half_life_s))
    shares.take_going(usage.going.values())
    return shares


def _any_of(quotas: tuple[Quota, ...], *kinds: QuotaKind) -> bool:
    return any(quota.kind in kinds for quota in quotas)
