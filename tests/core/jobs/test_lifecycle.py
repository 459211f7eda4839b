"""Each thing that can happen to a job: as usual, twice, too late, and while it is being cancelled."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simpletuner_fleet.core.errors import IllegalTransition, OfferWithdrawn, StaleAttempt, WrongJobState
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import NOTHING, Decision
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Hold, Job, JobState, Outcome
from simpletuner_fleet.core.jobs.lifecycle import End
from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.core.jobs.requests import stopping
from tests.core.builders import NOW, POLICY, a_job, a_worker, an_attempt, holding
from tests.core.jobs.lifecycle_kit import (
    ADMIN,
    DISPATCHED,
    ENDED,
    OFFERED,
    RUNNING,
    attempt_of,
    job_of,
    offered,
    taken,
    types,
)

# An offer and its acceptance.


def test_an_offer_names_the_worker_the_gpus_and_a_fresh_epoch() -> None:
    waiting = a_job(hold=Hold.BACKOFF, not_before=NOW, attempts=2, epoch=9)
    worker = a_worker("w_9", gpus=2)
    decision = lifecycle.offer(
        waiting, worker, worker.gpus, attempt_id="a_3", epoch=12, upload_token_hash="h", now=NOW
    )
    job, attempt = job_of(decision), attempt_of(decision)
    assert (job.state, job.epoch, job.attempts) == (JobState.DISPATCHED, 12, 3)
    assert (job.attempt_id, job.worker_id, job.hold, job.not_before) == ("a_3", "w_9", Hold.NONE, None)
    assert job.gpus == attempt.gpus == ("GPU-w_9-0", "GPU-w_9-1")
    assert attempt.gpu_indices == (0, 1)
    assert (attempt.number, attempt.epoch, attempt.state) == (3, 12, AttemptState.OFFERED)
    assert (attempt.worker_id, attempt.incarnation, attempt.offered_at) == ("w_9", "i_w_9", NOW)
    assert types(decision) == ["job.dispatched"]
    assert job.charged == waiting.charged


@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.QUEUED}))
def test_only_a_queued_job_can_be_offered(state: JobState) -> None:
    with pytest.raises(IllegalTransition):
        offered(a_job(state=state))


def test_an_accepted_offer_runs() -> None:
    decision = lifecycle.accept(DISPATCHED, OFFERED, incarnation="i_new", now=NOW + 1)
    job, attempt = job_of(decision), attempt_of(decision)
    assert (job.state, job.started_at) == (JobState.RUNNING, NOW + 1)
    assert (attempt.state, attempt.accepted_at) == (AttemptState.RUNNING, NOW + 1)
    assert attempt.incarnation == "i_new"
    assert types(decision) == ["job.accepted"]


def test_an_agent_that_names_no_process_leaves_the_one_it_was_offered_under() -> None:
    decision = lifecycle.accept(DISPATCHED, OFFERED, incarnation="", now=NOW)
    assert attempt_of(decision).incarnation == OFFERED.incarnation


def test_a_new_try_clears_the_old_error_and_keeps_the_first_start() -> None:
    again = replace(DISPATCHED, error="worker lost", reason="x", started_at=NOW - 50)
    job = job_of(lifecycle.accept(again, OFFERED, incarnation="", now=NOW))
    assert (job.error, job.reason, job.started_at) == (None, None, NOW - 50)


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.CANCELLING])
def test_accepting_twice_is_harmless(state: JobState) -> None:
    for incarnation in (RUNNING.incarnation, ""):
        assert lifecycle.accept(holding(state), RUNNING, incarnation=incarnation, now=NOW) is NOTHING


def test_another_process_cannot_accept_what_is_running_already() -> None:
    with pytest.raises(StaleAttempt):
        lifecycle.accept(holding(), RUNNING, incarnation="i_other", now=NOW)


@pytest.mark.parametrize("attempt", [ENDED, an_attempt("a_0", state=AttemptState.OFFERED)])
@pytest.mark.parametrize("state", list(JobState))
def test_accepting_too_late_is_refused(attempt: Attempt, state: JobState) -> None:
    with pytest.raises(OfferWithdrawn):
        lifecycle.accept(holding(state), attempt, incarnation="", now=NOW)


def test_a_job_being_cancelled_stays_so_when_its_offer_is_taken() -> None:
    decision = lifecycle.accept(holding(JobState.CANCELLING), OFFERED, incarnation="", now=NOW)
    assert job_of(decision).state is JobState.CANCELLING
    assert attempt_of(decision).state is AttemptState.RUNNING


def test_an_offer_nobody_takes_goes_back_uncharged() -> None:
    decision = lifecycle.offer_expired(replace(DISPATCHED, error="before"), OFFERED, now=NOW)
    job, attempt = job_of(decision), attempt_of(decision)
    assert (job.state, job.charged, job.hold) == (JobState.QUEUED, 0, Hold.NONE)
    assert (job.attempt_id, job.worker_id, job.gpus) == (None, None, ())
    assert job.error == "before"
    assert (attempt.state, attempt.outcome) == (AttemptState.ENDED, Outcome.EXPIRED_OFFER)
    assert types(decision) == ["job.offer_expired", "job.requeued"]


@pytest.mark.parametrize(
    ("job", "attempt"),
    [
        (holding(), RUNNING),
        (a_job(), ENDED),
        (holding(attempt_id="a_2"), OFFERED),
        (holding(JobState.CANCELLED), ENDED),
    ],
)
def test_an_offer_that_was_answered_meanwhile_does_not_expire(job: Job, attempt: Attempt) -> None:
    assert lifecycle.offer_expired(job, attempt, now=NOW) is NOTHING


def test_an_offer_that_expires_while_its_job_is_cancelled_ends_the_job() -> None:
    decision = lifecycle.offer_expired(holding(JobState.CANCELLING), OFFERED, now=NOW)
    assert job_of(decision).state is JobState.CANCELLED
    assert attempt_of(decision).outcome is Outcome.EXPIRED_OFFER


# While it runs.


def test_the_first_report_starts_the_trainers_clock_and_later_ones_do_not() -> None:
    first = lifecycle.progressed(holding(), RUNNING, None, now=NOW + 3)
    assert first.job is None
    assert attempt_of(first).started_at == NOW + 3
    assert types(first) == ["job.started"]
    later = lifecycle.progressed(holding(), attempt_of(first), Progress(step=5), now=NOW + 9)
    assert job_of(later).progress == Progress(step=5)
    assert attempt_of(later).started_at == NOW + 3
    assert types(later) == []


def test_a_report_without_news_writes_nothing() -> None:
    started = replace(RUNNING, started_at=NOW)
    for progress in (None, Progress(step=5)):
        assert lifecycle.progressed(holding(progress=Progress(step=5)), started, progress, now=NOW) is NOTHING


def test_progress_goes_on_while_a_job_is_being_cancelled() -> None:
    decision = lifecycle.progressed(holding(JobState.CANCELLING), RUNNING, Progress(step=1), now=NOW)
    assert job_of(decision).state is JobState.CANCELLING


# Every write of a worker is fenced.

reports: dict[str, Callable[[Job, Attempt], Decision]] = {
    "progressed": lambda job, attempt: lifecycle.progressed(job, attempt, Progress(step=1), now=NOW),
    "completed": lambda job, attempt: lifecycle.completed(job, attempt, End(), now=NOW),
    "failed": lambda job, attempt: lifecycle.failed(job, attempt, End(), POLICY, now=NOW),
    "lost": lambda job, attempt: lifecycle.lost(job, attempt, "silent", POLICY, now=NOW),
    "released": lambda job, attempt: stopping.released(job, attempt, "spot", POLICY, now=NOW),
    "stopped": lambda job, attempt: stopping.stopped(job, attempt, End(), POLICY, now=NOW),
}


@pytest.mark.parametrize("report", sorted(reports))
@pytest.mark.parametrize("state", list(JobState))
def test_a_stale_report_changes_nothing(report: str, state: JobState) -> None:
    older = an_attempt("a_0", epoch=0)
    for attempt in (older, ENDED, replace(older, state=AttemptState.ENDED)):
        with pytest.raises(StaleAttempt):
            reports[report](holding(state), attempt)
    with pytest.raises(StaleAttempt):
        reports[report](a_job(state=state), RUNNING)


@pytest.mark.parametrize("first", sorted(set(reports) - {"progressed"}))
@pytest.mark.parametrize("second", sorted(reports))
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.CANCELLING])
def test_of_two_final_reports_the_first_wins(first: str, second: str, state: JobState) -> None:
    decision = reports[first](holding(state), RUNNING)
    with pytest.raises(StaleAttempt):
        reports[second](job_of(decision), attempt_of(decision))


@pytest.mark.parametrize("report", ["completed", "failed", "stopped"])
def test_a_trainer_cannot_end_before_its_offer_was_taken(report: str) -> None:
    with pytest.raises(IllegalTransition):
        reports[report](DISPATCHED, OFFERED)


# Ends.


def test_a_completed_job_is_over() -> None:
    decision = lifecycle.completed(holding(error="old", reason="old"), RUNNING, End(), now=NOW)
    job, attempt = job_of(decision), attempt_of(decision)
    assert (job.state, job.finished_at, job.error, job.reason) == (JobState.COMPLETED, NOW, None, None)
    assert (attempt.outcome, attempt.exit_code, attempt.ended_at) == (Outcome.COMPLETED, 0, NOW)
    assert types(decision) == ["job.completed"]


def test_a_trainer_that_finishes_before_the_stop_reaches_it_has_completed() -> None:
    decision = lifecycle.completed(holding(JobState.CANCELLING), RUNNING, End(), now=NOW)
    assert job_of(decision).state is JobState.COMPLETED


def test_a_failed_trainer_ends_the_job_by_default() -> None:
    end = End(exit_code=3, last_lines="boom")
    decision = lifecycle.failed(holding(), RUNNING, end, POLICY, now=NOW)
    job, attempt = job_of(decision), attempt_of(decision)
    assert (job.state, job.reason, job.finished_at) == (JobState.FAILED, "trainer_failed", NOW)
    assert job.error == attempt.error == "the trainer exited with code 3"
    assert (job.failures, job.losses) == (1, 0)
    assert (attempt.outcome, attempt.exit_code, attempt.last_lines) == (Outcome.FAILED, 3, "boom")
    assert types(decision) == ["job.failed"]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (End(), "the trainer failed"),
        (End(exit_code=1), "the trainer exited with code 1"),
        (End(exit_signal=9), "the trainer was killed by signal 9"),
        (End(exit_code=137, exit_signal=9), "the trainer was killed by signal 9"),
        (End(exit_code=1, error="CUDA out of memory"), "CUDA out of memory"),
    ],
)
def test_a_failure_says_how_the_trainer_ended(end: End, error: str) -> None:
    assert job_of(lifecycle.failed(holding(), RUNNING, end, POLICY, now=NOW)).error == error


def test_a_failed_trainer_is_tried_again_where_asked_for() -> None:
    decision = lifecycle.failed(holding(retry_on_failure=True), RUNNING, End(exit_code=1), POLICY, now=NOW)
    job = job_of(decision)
    assert (job.state, job.failures, job.losses) == (JobState.QUEUED, 1, 0)
    assert job.error == "the trainer exited with code 1"
    assert job.attempt_id is None
    assert types(decision) == ["job.requeued"]


def test_a_lost_worker_charges_a_loss_and_the_job_goes_back() -> None:
    decision = lifecycle.lost(holding(), RUNNING, "no heartbeat", POLICY, now=NOW)
    job, attempt = job_of(decision), attempt_of(decision)
    assert (job.state, job.losses, job.failures, job.lost_workers) == (JobState.QUEUED, 1, 0, ("w_1",))
    assert (job.attempt_id, job.worker_id, job.gpus) == (None, None, ())
    assert (attempt.outcome, attempt.error) == (Outcome.LOST, "no heartbeat")
    assert types(decision) == ["job.lost", "job.requeued"]


def test_a_worker_lost_before_it_took_the_offer_charges_nothing() -> None:
    decision = lifecycle.lost(DISPATCHED, OFFERED, "gone", POLICY, now=NOW)
    job = job_of(decision)
    assert (job.state, job.charged, job.lost_workers) == (JobState.QUEUED, 0, ())
    assert attempt_of(decision).outcome is Outcome.EXPIRED_OFFER


@pytest.mark.parametrize(("job", "attempt"), [(holding(), RUNNING), (DISPATCHED, OFFERED)])
def test_a_released_job_goes_back_at_once_uncharged(job: Job, attempt: Attempt) -> None:
    decision = stopping.released(job, attempt, "spot notice", POLICY, now=NOW)
    back = job_of(decision)
    assert (back.state, back.charged, back.hold, back.error) == (JobState.QUEUED, 0, Hold.NONE, None)
    assert (attempt_of(decision).outcome, attempt_of(decision).error) == (Outcome.RELEASED, "spot notice")
    assert types(decision) == ["job.released", "job.requeued"]


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        ("failed", Outcome.FAILED),
        ("lost", Outcome.LOST),
        ("released", Outcome.RELEASED),
        ("stopped", Outcome.CANCELLED),
    ],
)
def test_whatever_ends_the_trainer_of_a_job_being_cancelled_cancels_it(report: str, outcome: Outcome) -> None:
    decision = reports[report](holding(JobState.CANCELLING, retry_on_failure=True), RUNNING)
    job = job_of(decision)
    assert (job.state, job.reason, job.finished_at, job.charged) == (JobState.CANCELLED, "cancelled", NOW, 0)
    assert attempt_of(decision).outcome is outcome
    assert types(decision) == ["job.cancelled"]


def test_a_watchdog_s_restart_is_charged_and_remembers_from_where_on_it_was_spoiled() -> None:
    end = End(error="watchdog: the loss was NaN at step 60", restart=True, resume_below=60)
    decision = lifecycle.failed(holding(max_retries=1), RUNNING, end, POLICY, now=NOW)
    assert (job_of(decision).state, job_of(decision).failures) == (JobState.QUEUED, 1)
    assert decision.attempt is not None
    assert (decision.attempt.resume_below, decision.attempt.failure_class) == (60, "watchdog_nan")
    spent = lifecycle.failed(holding(max_retries=0), RUNNING, end, POLICY, now=NOW)
    assert (job_of(spent).state, job_of(spent).reason) == (JobState.FAILED, "retries_exhausted")


def test_a_trainer_stopped_by_nobody_we_know_has_failed() -> None:
    decision = stopping.stopped(holding(), RUNNING, End(), POLICY, now=NOW)
    job = job_of(decision)
    assert (job.state, job.error) == (JobState.FAILED, "the trainer was stopped on its worker")


# A worker thought lost comes back.


def test_a_readopted_attempt_goes_on_as_if_nothing_had_been() -> None:
    before = holding(started_at=NOW - 9)
    gone = lifecycle.lost(before, RUNNING, "no heartbeat", POLICY, now=NOW)
    back = lifecycle.readopted(job_of(gone), attempt_of(gone), now=NOW + 5)
    assert back.job == before
    assert back.attempt == RUNNING
    assert types(back) == ["job.readopted"]


def test_a_readopted_attempt_leaves_an_earlier_loss_of_the_same_worker_on_the_books() -> None:
    job, attempt = taken(a_job())
    job = job_of(lifecycle.lost(job, attempt, "crash", POLICY, now=NOW))
    job, attempt = taken(job)
    gone = lifecycle.lost(job, attempt, "silent", POLICY, now=NOW)
    back = job_of(lifecycle.readopted(job_of(gone), attempt_of(gone), now=NOW))
    assert (back.losses, back.lost_workers) == (1, ("w_1",))


def test_a_worker_that_lives_after_all_was_not_killed_by_its_job() -> None:
    job = a_job(losses=3, lost_workers=("w_1", "w_2", "w_1"))
    alive = job_of(lifecycle.survived(job, "w_1"))
    assert (alive.lost_workers, alive.losses) == (("w_2",), 3)
    assert lifecycle.survived(alive, "w_1") is NOTHING
    assert lifecycle.survived(a_job(state=JobState.FAILED, lost_workers=("w_1",)), "w_1") is NOTHING
    back = job_of(lifecycle.readopted(alive, ENDED, now=NOW))
    assert (back.lost_workers, back.losses) == (("w_2",), 2)


@pytest.mark.parametrize("state", sorted(set(JobState) - {JobState.QUEUED}))
def test_only_a_queued_job_can_be_readopted(state: JobState) -> None:
    with pytest.raises(IllegalTransition):
        lifecycle.readopted(a_job(state=state), ENDED, now=NOW)


# Retries.


def test_three_retries_are_four_charged_attempts_and_no_more() -> None:
    job = a_job(max_retries=3, retry_on_failure=True)
    tries = 0
    while not job.terminal:
        job, attempt = taken(job)
        job = job_of(lifecycle.failed(job, attempt, End(exit_code=1), POLICY, now=NOW))
        tries += 1
    assert (tries, job.failures, job.state, job.reason) == (4, 4, JobState.FAILED, "retries_exhausted")


def test_four_losses_of_one_worker_exhaust_three_retries() -> None:
    job = a_job(max_retries=3)
    waits = []
    for _ in range(4):
        job, attempt = taken(job)
        job = job_of(lifecycle.lost(job, attempt, "crash", POLICY, now=NOW))
        waits.append((job.hold, job.not_before))
    assert (job.state, job.reason, job.losses) == (JobState.FAILED, "retries_exhausted", 4)
    assert waits[:3] == [(Hold.NONE, None), (Hold.BACKOFF, NOW + 5), (Hold.BACKOFF, NOW + 10)]


def test_two_different_lost_workers_make_a_job_poison() -> None:
    job, attempt = taken(a_job(max_retries=100), "w_1")
    job, attempt = taken(job_of(lifecycle.lost(job, attempt, "crash", POLICY, now=NOW)), "w_2")
    decision = lifecycle.lost(job, attempt, "crash", POLICY, now=NOW)
    assert (job_of(decision).state, job_of(decision).reason) == (JobState.FAILED, "poison")
    assert types(decision) == ["job.lost", "job.failed"]


def test_without_retries_the_first_loss_is_the_end() -> None:
    job, attempt = taken(a_job(max_retries=0))
    assert job_of(lifecycle.lost(job, attempt, "crash", POLICY, now=NOW)).state is JobState.FAILED


def test_offers_and_releases_never_use_up_a_job() -> None:
    job = a_job(max_retries=0)
    for _ in range(50):
        job, attempt = offered(job)
        job = job_of(lifecycle.offer_expired(job, attempt, now=NOW))
        job, attempt = taken(job)
        job = job_of(stopping.released(job, attempt, "drain", POLICY, now=NOW))
    assert (job.state, job.charged, job.attempts, job.epoch) == (JobState.QUEUED, 0, 100, 100)


# Anything in any order.

steps = st.lists(
    st.sampled_from(
        ["offer", "accept", "expire", "cancel", "backoff", "readopt", *sorted(reports)],
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(steps, st.integers(0, 3), st.booleans(), st.lists(st.integers(1, 2), min_size=40, max_size=40))
def test_whatever_happens_the_books_balance(
    steps: list[str], max_retries: int, retry_on_failure: bool, places: list[int]
) -> None:
    job = a_job(max_retries=max_retries, retry_on_failure=retry_on_failure)
    attempts: dict[str, Attempt] = {}
    for step, place in zip(steps, places, strict=False):
        was_terminal, before = job.terminal, job
        current = attempts.get(job.attempt_id or "") or an_attempt("a_none", state=AttemptState.ENDED)
        last = attempts.get(f"a_{job.attempts}")
        try:
            match step:
                case "offer":
                    job, attempt = offered(job, f"w_{place}")
                    attempts[attempt.id] = attempt
                    continue
                case "accept":
                    decision = lifecycle.accept(job, current, incarnation="", now=NOW)
                case "expire":
                    decision = lifecycle.offer_expired(job, current, now=NOW)
                case "cancel":
                    live = current if current.live else None
                    decision = stopping.cancel(job, live, explicit_accept=True, actor=ADMIN, now=NOW)
                case "backoff":
                    decision = lifecycle.hold_over(job, job.not_before or NOW)
                case "readopt" if last and last.outcome is Outcome.LOST and job.state is JobState.QUEUED:
                    decision = lifecycle.readopted(job, last, now=NOW)
                case "readopt":
                    continue
                case _:
                    decision = reports[step](job, current)
        except (StaleAttempt, WrongJobState, IllegalTransition):
            continue
        job = decision.job or job
        if decision.attempt:
            attempts[decision.attempt.id] = decision.attempt
        assert not was_terminal or job == before
        outcomes = [attempt.outcome for attempt in attempts.values()]
        live_ones = [attempt for attempt in attempts.values() if attempt.live]
        assert len(live_ones) == (job.state in {"dispatched", "running", "cancelling"})
        assert all(attempt.id == job.attempt_id for attempt in live_ones)
        assert job.charged <= max_retries + 1
        assert len(job.lost_workers) == job.losses
        assert job.losses <= outcomes.count(Outcome.LOST)
        assert job.failures <= outcomes.count(Outcome.FAILED)
        assert sorted(attempt.epoch for attempt in attempts.values()) == list(range(1, len(attempts) + 1))


def test_what_is_brought_before_a_trainer_starts_is_shown_until_it_starts() -> None:
    job, attempt = holding(), an_attempt()
    phase = Progress(phase="fetching data", done_bytes=3, total_bytes=8)
    prepared = lifecycle.preparing(job, attempt, phase)
    assert prepared.job is not None
    assert (prepared.job.progress, prepared.attempt, prepared.events) == (phase, None, ())
    assert lifecycle.preparing(prepared.job, attempt, phase) == NOTHING
    started = lifecycle.progressed(prepared.job, attempt, None, now=NOW)
    assert started.job is not None
    assert started.job.progress is None
    given_back = stopping.released(prepared.job, attempt, "the worker leaves", POLICY, now=NOW)
    assert given_back.job is not None
    assert given_back.job.progress is None


def test_progress_outlives_a_requeue() -> None:
    job = holding(progress=Progress(step=7))
    given_back = stopping.released(job, an_attempt(), "the worker leaves", POLICY, now=NOW)
    assert given_back.job is not None
    assert given_back.job.progress == Progress(step=7)
