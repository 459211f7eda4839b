"""What every kind of quota does for every scope with every action, cell by cell, as docs/teams.md has it."""

from itertools import product

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.job import AttemptState, JobState
from simpletuner_fleet.core.people.quotas import (
    Quota,
    QuotaAction,
    QuotaBook,
    QuotaKind,
    QuotaScope,
    checked_quota,
    quota_params,
)
from simpletuner_fleet.core.placement.usage import UseLedger
from tests.core.builders import a_job
from tests.core.people.test_quotas import HOUR_S, NOON, a_book, a_quota, attempt_of, job_of

SUBJECTS = {"person": "ann", "team": "tm", "role": "member", "each": "", "all": ""}
CEILINGS = {
    "running_jobs": 1,
    "gpus": 2,
    "gpu_hours_day": 2,
    "gpu_hours_month": 2,
    "money_day": 2_000_000,
    "money_month": 2_000_000,
    "jobs_per_hour": 1,
    "stored_bytes": 1,
}
"""Each is used up by one job of ann's with two GPUs that has run for an hour."""


def cell(kind: QuotaKind, scope: QuotaScope, action: QuotaAction) -> Quota:
    return a_quota(kind, scope, CEILINGS[kind], SUBJECTS[scope], action)


def used_up(quota: Quota) -> QuotaBook:
    """One job of ann's, of the team, was submitted and has run for an hour."""
    book = a_book(quota, now=NOON - HOUR_S + 1)
    job = job_of("ann", "tm", gpus=2, id="j_0", state=JobState.QUEUED, created_at=NOON - HOUR_S + 1)
    book.usage.see_job(None, job)
    runs = replace(attempt_of(job, NOON - HOUR_S + 1, 2), hourly_micros=3_000_000)
    book.usage.see_attempt(None, runs, job)
    book.usage.see_job(job, replace(job, state=JobState.RUNNING))
    book.now = NOON
    return book


@pytest.mark.parametrize("scope", QuotaScope)
def test_every_cell_of_what_jobs_use_does_what_its_action_says(scope: QuotaScope) -> None:
    concerned, not_concerned = job_of("ann", "tm", gpus=2, id="j_1"), job_of("root", gpus=2, id="j_2")
    for kind, action in product(QuotaKind, QuotaAction):
        if kind is QuotaKind.STORED_BYTES:
            continue
        quota = checked_quota(cell(kind, scope, action))
        if kind in (QuotaKind.GPU_HOURS_DAY, QuotaKind.GPU_HOURS_MONTH):
            quota = replace(quota, ceiling=2 * (HOUR_S - 1) / HOUR_S)
        book = used_up(quota)
        waits = book.keeps_waiting(concerned)
        passed = book.passed_by(concerned, (QuotaAction.REFUSE, QuotaAction.APPROVE))
        near = book.nearly_reached(concerned)
        said = (kind, action)
        assert (waits is not None) == (action is QuotaAction.WAIT), said
        assert bool(passed) == (action in (QuotaAction.REFUSE, QuotaAction.APPROVE)), said
        assert near, said
        if scope not in (QuotaScope.EACH, QuotaScope.ALL):
            assert not book.keeps_waiting(not_concerned), said
            assert not book.passed_by(not_concerned, list(QuotaAction)), said
            assert not book.nearly_reached(not_concerned), said


@pytest.mark.parametrize("scope", QuotaScope)
def test_storage_has_every_scope_and_every_action_but_waiting(scope: QuotaScope) -> None:
    for action in QuotaAction:
        quota = cell(QuotaKind.STORED_BYTES, scope, action)
        if action is QuotaAction.WAIT:
            with pytest.raises(Invalid, match="stored_bytes there can be approve, refuse, warn"):
                checked_quota(quota)
        else:
            assert checked_quota(quota) == quota


def test_fewer_than_one_job_an_hour_is_refused_where_jobs_would_wait_for_ever() -> None:
    none = a_quota("jobs_per_hour", "all", 0, action="refuse")
    assert checked_quota(none) == none
    with pytest.raises(Invalid, match="no job that waits would ever start"):
        checked_quota(a_quota("jobs_per_hour", "all", 0.5))


def test_jobs_an_hour_that_wait_are_counted_as_they_start_and_told_when_one_more_fits() -> None:
    book = a_book(a_quota("jobs_per_hour", "each", 2))
    usage = book.usage
    for at in range(5):
        usage.see_job(None, job_of("ann", id=f"j_{at}", created_at=NOON))
    assert book.keeps_waiting(job_of("ann")) is None, "what waits has not started"
    for at in range(2):
        usage.see_attempt(None, attempt_of(job_of("ann"), NOON + 60 * at), job_of("ann"))
    book.now = NOON + 100
    held = book.keeps_waiting(job_of("ann"))
    assert held is not None
    said = quota_params(book, held)
    assert (said["used"], said["ceiling"], said["frees_at"]) == (2, 2, NOON + HOUR_S)
    assert (said["whose"], said["frees"]) == ("each", "2026-03-31 13:00 UTC")
    assert book.keeps_waiting(job_of("bob")) is None
    assert book.keeps_waiting(replace(job_of("ann"), attempts=1)) is None, "what is tried again has started"

    again = replace(attempt_of(job_of("ann"), NOON + 90), id="a_again", number=2)
    usage.see_attempt(None, again, job_of("ann"))
    assert book.standing(book.quotas[0], "person:ann", book.now).used == 2, "a job counts once"
    assert not book.frees_a_start(NOON + HOUR_S - 1)
    assert book.frees_a_start(NOON + HOUR_S)
    book.forget_old_starts(NOON + HOUR_S)
    assert not book.frees_a_start(NOON + HOUR_S)
    book.now = NOON + HOUR_S
    assert book.keeps_waiting(job_of("ann")) is None


def test_a_start_that_is_taken_back_is_not_counted_and_a_lower_ceiling_frees_later() -> None:
    usage = UseLedger()
    usage.advance(NOON)
    job = a_job("j_1")
    begun = [replace(attempt_of(job, NOON + at), id=f"a_{at}") for at in range(4)]
    for one in begun:
        usage.see_attempt(None, one, job)
    usage.see_attempt(begun[3], None, job)
    usage.see_attempt(begun[0], replace(begun[0], state=AttemptState.ENDED, ended_at=NOON + 9), job)
    book = QuotaBook([a_quota("jobs_per_hour", "all", 1)], {}, {}, usage)
    book.now = NOON + 10
    held = book.keeps_waiting(job)
    assert held is not None
    assert (held.used, held.frees_at) == (3, NOON + 2 + HOUR_S), "two of three must be an hour old"
