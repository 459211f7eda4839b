"""Drains with a deadline, hurried cancellations and checkpoints beyond reach, through the real orchestrator."""

from typing import Any

from simpletuner_fleet.core.errors import StaleAttempt, StaleMessage
from simpletuner_fleet.core.jobs.job import EndReason, JobState, Outcome
from simpletuner_fleet.core.jobs.reconcile import incarnation_of
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.orchestrator import submit
from simpletuner_fleet.orchestrator.workers import administer
from simpletuner_fleet.protocol.messages import (
    HeldAttempt,
    JobCancel,
    ReportStatus,
    StatusReport,
    StopAttempt,
)
from simpletuner_fleet.sim.people import ADMIN
from tests.sim.transaction_kit import Bench, Station


def drain(bench: Bench, worker: Station, **options: Any) -> None:
    bench.do(bench.orchestrator.act(lambda fleet: administer.drain(fleet, worker.id, "", ADMIN, **options)))


def resume(bench: Bench, worker: Station) -> None:
    bench.do(bench.orchestrator.act(lambda fleet: administer.resume(fleet, worker.id, ADMIN)))


def cancel(bench: Bench, job_id: str, **options: Any) -> None:
    bench.do(bench.orchestrator.act(lambda fleet: submit.cancel(fleet, job_id, ADMIN, **options)))


def held(bench: Bench, job_id: str) -> HeldAttempt:
    return HeldAttempt(job_id=job_id, epoch=bench.job(job_id).epoch)


def tell(bench: Bench, worker: Station, job_id: str, status: ReportStatus, **facts: Any) -> None:
    report = StatusReport(
        status=status, epoch=bench.job(job_id).epoch, incarnation=worker.incarnation, **facts
    )
    bench.do(lambda: bench.orchestrator.report(worker.token, job_id, report))


def save(bench: Bench, worker: Station, job_id: str, step: int) -> None:
    epoch = bench.job(job_id).epoch
    bench.do(lambda: bench.orchestrator.store_checkpoint(worker.token, job_id, epoch, step))


def stops(worker: Station, *attempts: HeldAttempt) -> list[StopAttempt]:
    return worker.beat(*attempts).stop


def at_work(bench: Bench, worker: Station, **options: Any) -> str:
    job_id = bench.submit(**options)
    worker.accept(job_id)
    return job_id


def pass_time(bench: Bench, seconds: float, worker: Station, job_id: str) -> None:
    """The worker goes on naming what it holds."""
    for _ in range(int(seconds / 10)):
        bench.let(10.0)
        worker.beat(held(bench, job_id))


def test_a_drain_without_a_timeout_waits_for_its_jobs_for_ever() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = at_work(bench, worker)
    drain(bench, worker)
    pass_time(bench, 3600.0, worker, job_id)
    assert stops(worker, held(bench, job_id)) == []
    assert bench.job(job_id).state is JobState.RUNNING


def test_at_the_deadline_of_a_drain_what_runs_is_asked_to_save_and_leave_and_goes_on_elsewhere() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = at_work(bench, worker)
    drain(bench, worker, timeout_s=60.0)
    pass_time(bench, 50.0, worker, job_id)
    assert stops(worker, held(bench, job_id)) == []
    pass_time(bench, 20.0, worker, job_id)
    (order,) = stops(worker, held(bench, job_id))
    assert (order.reason, order.save_s) == ("drained", bench.orchestrator.policy.checkpoint_wait_s)
    assert [message.reason for message in worker.heard if isinstance(message, JobCancel)] == ["drained"]
    save(bench, worker, job_id, 70)
    other = bench.worker("other").comes()
    tell(bench, worker, job_id, ReportStatus.RELEASED, reason="drained")
    job, (before, after) = bench.job(job_id), bench.attempts(job_id)
    assert (before.outcome, before.reason, job.charged) == (Outcome.RELEASED, EndReason.DRAINED, 0)
    assert (after.worker_id, after.resumed_from_step) == (other.id, 70)


def test_the_deadline_of_a_drain_survives_the_orchestrator_and_a_repeated_request() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = at_work(bench, worker)
    drain(bench, worker, timeout_s=60.0, checkpoint_first=False)
    bench.let(30.0)
    drain(bench, worker, timeout_s=60.0, checkpoint_first=False)
    bench.crash(restarts_in_s=20.0)
    worker.register(held(bench, job_id))
    worker.open_stream()
    bench.let(15.0)
    (order,) = stops(worker, held(bench, job_id))
    assert (order.reason, order.save_s) == ("drained", None)


def test_a_drain_that_was_undone_stops_nothing() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = at_work(bench, worker)
    drain(bench, worker, timeout_s=30.0)
    resume(bench, worker)
    assert worker.row.drain_plan is None
    pass_time(bench, 60.0, worker, job_id)
    assert stops(worker, held(bench, job_id)) == []


def test_a_timeout_of_nothing_stops_at_once_also_on_an_agent_that_knows_no_drain() -> None:
    bench = Bench()
    worker = bench.worker(older=True).comes()
    job_id = bench.submit()
    bench.do(
        lambda: bench.orchestrator.report(worker.token, job_id, StatusReport(status=ReportStatus.TRAINING))
    )
    drain(bench, worker, timeout_s=0.0)
    bench.let(1.0)
    assert [message.job_id for message in worker.heard if isinstance(message, JobCancel)] == [job_id]
    bench.do(
        lambda: bench.orchestrator.report(worker.token, job_id, StatusReport(status=ReportStatus.CANCELLED))
    )
    assert (bench.job(job_id).state, bench.job(job_id).charged) == (JobState.QUEUED, 0)


def test_a_cancel_that_waits_for_a_checkpoint_is_hurried_by_the_next_one() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = at_work(bench, worker)
    cancel(bench, job_id, checkpoint_first=True)
    cancel(bench, job_id, checkpoint_first=True)
    cancel(bench, job_id, grace_s=3.0)
    bench.let(1.0)
    orders = [(message.save_s, message.grace_s) for message in worker.heard if isinstance(message, JobCancel)]
    assert orders == [(300.0, 30.0), (None, 3.0)]
    tell(bench, worker, job_id, ReportStatus.CANCELLED)
    assert bench.job(job_id).state is JobState.CANCELLED


def test_a_checkpoint_that_cannot_be_fetched_gives_way_to_an_older_one_and_in_the_end_to_the_beginning() -> (
    None
):
    bench = Bench(Policy(resume_tries=2))
    worker = bench.worker().comes()
    job_id = at_work(bench, worker)
    save(bench, worker, job_id, 10)
    save(bench, worker, job_id, 20)
    tell(bench, worker, job_id, ReportStatus.RELEASED)
    tried = []
    for _ in range(5):
        bench.let(10.0)
        worker.beat()
        worker.accept(job_id)
        tried.append(bench.attempts(job_id)[-1].resumed_from_step)
        if tried[-1] is not None:
            tell(bench, worker, job_id, ReportStatus.RELEASED, reason="resume_failed", error="damaged")
    assert tried == [20, 20, 10, 10, None]
    assert bench.job(job_id).charged == 0
    save(bench, worker, job_id, 5)
    left = bench.orchestrator.store.view.manifests_of_job(job_id)
    assert [one.step for one in left] == [5], "what nobody could fetch does not push out what is made instead"


def test_a_job_back_from_its_time_limit_lets_others_go_first_and_returns_to_the_same_worker() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = at_work(bench, worker, time_limit_s=60.0, on_time_limit="requeue")
    bench.let(60.0)
    other = bench.submit()
    bench.let(1.0)
    save(bench, worker, job_id, 30)
    tell(bench, worker, job_id, ReportStatus.RELEASED, reason="time_limit")
    assert bench.job(other).state is JobState.DISPATCHED
    worker.accept(other)
    tell(bench, worker, other, ReportStatus.COMPLETED)
    assert bench.job(job_id).state is JobState.DISPATCHED
    assert bench.attempts(job_id)[-1].resumed_from_step == 30


# Found by simulation.


def test_a_checkpoint_that_arrives_after_its_attempts_end_counts() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = at_work(bench, worker)
    tell(bench, worker, job_id, ReportStatus.COMPLETED)
    save(bench, worker, job_id, 10)
    assert bench.attempts(job_id)[0].checkpoint_step == 10


def test_a_registration_of_a_process_that_has_a_successor_changes_nothing() -> None:
    bench = Bench()
    worker = bench.worker()
    worker.incarnation = incarnation_of(1, "old")
    late = worker.registration([])
    worker.incarnation = incarnation_of(2, "new")
    worker.comes()
    job_id = at_work(bench, worker)
    try:
        bench.do(lambda: bench.orchestrator.register(worker.token, late))
        raise AssertionError("it was not refused")
    except StaleMessage:
        assert bench.attempts(job_id)[0].live


def test_a_late_word_of_a_lost_attempt_leaves_its_gpu_to_the_one_who_has_it_now() -> None:
    bench = Bench()
    worker = bench.worker(max_jobs=2).comes()
    first = at_work(bench, worker, gpus=2)
    bench.let(200.0)
    assert bench.attempts(first)[0].outcome is Outcome.LOST
    epoch = bench.job(first).epoch
    second = bench.submit(gpus=2, priority=100)
    worker.register()
    worker.open_stream()
    assert bench.job(second).state is JobState.DISPATCHED
    report = StatusReport(status=ReportStatus.FAILED, epoch=epoch, incarnation=worker.incarnation)
    try:
        bench.do(lambda: bench.orchestrator.report(worker.token, first, report))
    except StaleAttempt:
        raise AssertionError("nobody has been offered it since: it counts") from None
    assert len(bench.orchestrator.index.roster.occupancy(worker.id).gpus) == 2
