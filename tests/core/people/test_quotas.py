from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, JobState, Requirements
from simpletuner_fleet.core.people.quotas import (
    Quota,
    QuotaAction,
    QuotaBook,
    QuotaKind,
    QuotaScope,
    checked_quota,
    quota_params,
)
from simpletuner_fleet.core.placement.usage import Charge, UseLedger, day_of, month_of, person
from tests.core.builders import a_job

NOON = datetime(2026, 3, 31, 12, 0, tzinfo=UTC).timestamp()
HOUR_S = 3600.0


def a_quota(kind: str, scope: str, ceiling: float, subject: str = "", action: str = "wait") -> Quota:
    return Quota(
        id=f"q_{kind}_{scope}",
        kind=QuotaKind(kind),
        scope=QuotaScope(scope),
        subject=subject,
        ceiling=ceiling,
        action=QuotaAction(action),
    )


def job_of(owner: str, team: str = "", gpus: int = 1, id: str = "j_1", **fields: object) -> Job:
    return replace(a_job(id, requires=Requirements(owner=owner, team=team, gpus=gpus), **fields), team=team)


def attempt_of(job: Job, since: float, gpus: int = 1) -> Attempt:
    return Attempt(
        id=f"a_{job.id}",
        job_id=job.id,
        number=1,
        epoch=1,
        worker_id="w",
        worker_name="w",
        state=AttemptState.RUNNING,
        offered_at=since,
        accepted_at=since,
        gpus=tuple(f"g{at}" for at in range(gpus)),
    )


def a_book(*quotas: Quota, now: float = NOON) -> QuotaBook:
    usage = UseLedger()
    usage.advance(now)
    book = QuotaBook(quotas, {"ann": "member", "root": "admin"}, {"tm": "vision"}, usage)
    book.now = now
    return book


@pytest.mark.parametrize(
    ("quota", "held"),
    [
        (a_quota("running_jobs", "person", 1, "ann"), {"ann's", "ann's of the team"}),
        (a_quota("running_jobs", "team", 1, "tm"), {"ann's of the team", "bob's of the team"}),
        (a_quota("running_jobs", "role", 1, "member"), {"ann's", "ann's of the team"}),
        (a_quota("running_jobs", "each", 1), {"ann's", "ann's of the team"}),
        (a_quota("running_jobs", "all", 1), {"ann's", "ann's of the team", "bob's of the team", "bob's"}),
        (a_quota("gpus", "all", 2), {"ann's", "ann's of the team", "bob's of the team", "bob's"}),
        (a_quota("gpus", "all", 3), set()),
    ],
    ids=lambda value: getattr(value, "id", ""),
)
def test_whose_jobs_wait_for_which_quota(quota: Quota, held: set[str]) -> None:
    book = a_book(quota)
    runs = job_of("ann", "tm", gpus=2, id="j_0", state=JobState.RUNNING)
    book.usage.see_attempt(None, attempt_of(runs, NOON, 2), runs)
    asked = {
        "ann's": job_of("ann"),
        "ann's of the team": job_of("ann", "tm"),
        "bob's of the team": job_of("bob", "tm"),
        "bob's": job_of("bob"),
    }
    assert {name for name, job in asked.items() if book.keeps_waiting(job)} == held


def test_hours_are_charged_from_the_attempts_own_times_and_begin_anew_at_midnight() -> None:
    book = a_book(a_quota("gpu_hours_day", "each", 5), a_quota("gpu_hours_month", "each", 100))
    usage, job = book.usage, job_of("ann")
    usage.take_charges([Charge("ann", "", 2, NOON - 2 * HOUR_S, NOON - HOUR_S)])
    runs = attempt_of(job, NOON, 3)
    usage.see_attempt(None, runs, job)
    one_later = NOON + HOUR_S
    assert usage.gpu_hours(usage.day, person("ann"), one_later) == pytest.approx(5.0)
    book.now = one_later - 1
    assert book.keeps_waiting(job) is None
    book.now = one_later
    held = book.keeps_waiting(job)
    assert held is not None
    said = quota_params(book, held)
    assert (said["kind"], said["whose"], said["frees"]) == ("gpu_hours_day", "each", "2026-04-01 00:00 UTC")

    midnight = day_of(NOON)[1]
    assert not usage.advance(midnight - 1)
    assert usage.advance(midnight + 60), "a new day, and with it a new month"
    book.now = midnight + 60
    assert book.keeps_waiting(job) is None
    assert usage.gpu_hours(usage.day, person("ann"), midnight + 60) == pytest.approx(3 * 60 / HOUR_S)
    assert usage.gpu_hours(usage.month, person("ann"), midnight + 60) == pytest.approx(3 * 60 / HOUR_S)
    ended = replace(runs, state=AttemptState.ENDED, ended_at=midnight + 3600)
    usage.see_attempt(runs, ended, job)
    assert usage.gpu_hours(usage.day, person("ann"), midnight + 9999) == pytest.approx(3.0)
    usage.see_attempt(ended, runs, job)
    assert usage.gpu_hours(usage.day, person("ann"), midnight + 7200) == pytest.approx(6.0)


def test_months_have_their_own_lengths() -> None:
    begins, ends = month_of(datetime(2028, 2, 29, 23, 59, tzinfo=UTC).timestamp())
    assert (ends - begins) / 86_400 == 29


def test_a_hundred_at_once_never_pass_a_ceiling_that_refuses() -> None:
    book = a_book(
        a_quota("running_jobs", "team", 10, "tm", "refuse"),
        a_quota("jobs_per_hour", "each", 7, action="refuse"),
    )
    admitted = 0
    for at in range(100):
        job = job_of("ann" if at % 2 else "bob", "tm", id=f"j_{at}", created_at=NOON)
        if not book.passed_by(job, (QuotaAction.REFUSE,)):
            book.usage.see_job(None, job)
            admitted += 1
    assert admitted == 10
    gone = replace(job_of("ann", "tm", id="j_0", created_at=NOON), state=JobState.CANCELLED)
    book.usage.see_job(job_of("ann", "tm", id="j_0", created_at=NOON), gone)
    again = job_of("ann", "tm", id="j_a", created_at=NOON)
    assert not book.passed_by(again, (QuotaAction.REFUSE,))
    for at in range(3):
        book.usage.see_job(None, job_of("ann", "", id=f"j_x{at}", created_at=NOON))
    assert book.passed_by(job_of("ann"), (QuotaAction.REFUSE,))
    book.now = NOON + HOUR_S + 1
    assert not book.passed_by(job_of("ann"), (QuotaAction.REFUSE,))


def test_who_nears_a_ceiling_is_told() -> None:
    book = a_book(a_quota("gpus", "person", 10, "ann"))
    job = job_of("ann", gpus=7, state=JobState.QUEUED)
    book.usage.see_job(None, job)
    assert book.nearly_reached(job_of("ann")) == []
    book.usage.see_job(None, job_of("ann", gpus=1, id="j_2"))
    assert [one.used for one in book.nearly_reached(job_of("ann"))] == [8]
    assert book.nearly_reached(job_of("bob")) == []


@pytest.mark.parametrize(
    "quota",
    [
        a_quota("gpus", "person", 1),
        a_quota("gpus", "all", 1, "ann"),
        a_quota("gpus", "all", float("nan")),
        a_quota("gpus", "all", -1),
        a_quota("jobs_per_hour", "all", 0, action="wait"),
        a_quota("stored_bytes", "person", 1, "ann", "wait"),
        replace(a_quota("gpus", "all", 1), warn_at=0.0),
    ],
)
def test_a_quota_that_makes_no_sense_is_refused(quota: Quota) -> None:
    with pytest.raises(Invalid):
        checked_quota(quota)


def test_money_is_counted_while_jobs_run_and_begins_anew_at_midnight() -> None:
    book = a_book(a_quota("money_day", "each", 5_000_000), a_quota("money_month", "team", 90_000_000, "tm"))
    usage, job = book.usage, job_of("ann", "tm")
    usage.take_charges([Charge("ann", "tm", 1, NOON - 4 * HOUR_S, NOON - 2 * HOUR_S, 1_000_000)])
    runs = replace(attempt_of(job, NOON - HOUR_S), hourly_micros=1_000_000)
    usage.see_attempt(None, replace(runs, state=AttemptState.OFFERED, accepted_at=None), job)
    usage.see_attempt(replace(runs, state=AttemptState.OFFERED, accepted_at=None), runs, job)
    day, month = book.quotas
    assert book.standing(day, person("ann"), NOON).used == 3_000_000
    assert book.keeps_waiting(job) is None, "any that is left suffices"
    book.now = NOON + 2 * HOUR_S
    waits = book.keeps_waiting(job)
    assert waits is not None
    assert (waits.used, waits.quota, waits.at_least) == (5_000_000, day, False)
    assert waits.frees_at == day_of(NOON)[1]
    assert waits.forecast is not None
    assert waits.forecast.hourly_micros == 1_000_000
    params = quota_params(book, waits)
    assert (params["used"], params["ceiling"]) == ("5.00 USD", "5.00 USD")
    assert (params["used_micros"], params["ceiling_micros"]) == (5_000_000, 5_000_000)

    usage.see_attempt(runs, replace(runs, state=AttemptState.ENDED, ended_at=NOON + 3 * HOUR_S), job)
    assert book.standing(month, "team:tm", NOON + 9 * HOUR_S).used == 6_000_000, "and no more since its end"
    usage.advance(NOON + 24 * HOUR_S)
    assert book.standing(day, person("ann"), NOON + 24 * HOUR_S).used == 0
    assert not isinstance(book.standing(day, person("ann"), NOON).used, float)


def test_what_runs_over_midnight_is_paid_on_both_days_and_undoing_takes_all_back() -> None:
    book = a_book(a_quota("money_day", "each", 5_000_000))
    usage, job, (day,) = book.usage, job_of("ann"), book.quotas
    runs = replace(attempt_of(job, NOON), hourly_micros=3_600_000)
    usage.see_attempt(None, runs, job)
    midnight = day_of(NOON)[1]
    usage.advance(midnight + 10)
    assert book.standing(day, person("ann"), midnight + 10).used == 10_000
    ended = replace(runs, state=AttemptState.ENDED, ended_at=midnight + 20)
    usage.see_attempt(runs, ended, job)
    assert book.standing(day, person("ann"), midnight + 99).used == 20_000
    usage.see_attempt(ended, runs, job)
    usage.see_attempt(runs, None, job)
    assert book.standing(day, person("ann"), midnight + 99).used == 0
    assert usage.hourly[person("ann")] == 0


def test_a_price_that_nobody_knows_makes_it_at_least() -> None:
    book = a_book(a_quota("money_day", "each", 5_000_000), a_quota("money_day", "all", 5_000_000))
    usage, (each, everybody) = book.usage, book.quotas
    unknown, known = job_of("ann", id="j_1"), job_of("bob", id="j_2")
    usage.see_attempt(None, attempt_of(unknown, NOON), unknown)
    usage.see_attempt(None, replace(attempt_of(known, NOON), hourly_micros=1_000_000), known)
    later = NOON + HOUR_S
    assert book.standing(each, person("ann"), later).at_least
    assert not book.standing(each, person("bob"), later).at_least
    both = book.standing(everybody, "all", later)
    assert (both.used, both.at_least) == (1_000_000, True)
    assert book.accounts_of(each) == [person("ann"), person("bob")]
    runs = attempt_of(unknown, NOON)
    usage.see_attempt(runs, replace(runs, state=AttemptState.ENDED, ended_at=later), unknown)
    assert book.standing(each, person("ann"), later).at_least, "also once it has ended"
    no_gpu = a_book(each)
    cpu = job_of("ann", gpus=0)
    no_gpu.usage.see_attempt(None, attempt_of(cpu, NOON, 0), cpu)
    assert not no_gpu.standing(each, person("ann"), later).at_least, "without a GPU there is nothing to pay"
    assert no_gpu.keeps_waiting(cpu) is None


def test_a_ceiling_of_money_is_a_whole_number() -> None:
    assert checked_quota(a_quota("money_day", "all", 5.0)).ceiling == 5
    with pytest.raises(Invalid):
        checked_quota(a_quota("money_day", "all", 5.5))
