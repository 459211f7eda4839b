"""Defects that showed in about one of a thousand seeds, each told in a few lines."""

import pytest

from simpletuner_fleet.core.jobs.job import FINISHING, JobState, Outcome, Results
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.orchestrator import submit
from simpletuner_fleet.orchestrator.workers import administer
from simpletuner_fleet.protocol.messages import HeldAttempt, ReportStatus, StatusReport
from simpletuner_fleet.sim.people import ADMIN
from simpletuner_fleet.sim.world import drive
from tests.sim.test_restores import restored, with_backups
from tests.sim.transaction_kit import Bench, Station


def a_job_that_finishes_while_another_has_its_gpus() -> tuple[Bench, Station, str, str]:
    bench = Bench()
    worker = bench.worker(max_jobs=2).comes()
    first = bench.submit(gpus=2)
    worker.accept(first)
    finishing = StatusReport(
        status=ReportStatus.RUNNING, epoch=bench.job(first).epoch, progress={"phase": FINISHING}
    )
    bench.do(lambda: bench.orchestrator.report(worker.token, first, finishing))
    second = bench.submit(gpus=2)
    worker.accept(second)
    return bench, worker, first, second


def test_a_late_word_of_a_trainer_that_has_ended_does_not_take_its_gpus_back() -> None:
    bench, worker, first, _ = a_job_that_finishes_while_another_has_its_gpus()
    late = StatusReport(status=ReportStatus.RUNNING, epoch=bench.job(first).epoch)
    bench.do(lambda: bench.orchestrator.report(worker.token, first, late))
    assert bench.job(first).results is Results.PENDING


def test_a_cancelled_job_that_was_finishing_does_not_take_its_gpus_back() -> None:
    bench, worker, first, second = a_job_that_finishes_while_another_has_its_gpus()
    fleet = bench.orchestrator.fleet
    assert fleet is not None
    bench.do(lambda: drive(submit.cancel(fleet, first, ADMIN)))
    assert bench.job(first).state is JobState.CANCELLING
    done = StatusReport(status=ReportStatus.COMPLETED, epoch=bench.job(second).epoch, results=Results.STORED)
    bench.do(lambda: bench.orchestrator.report(worker.token, second, done))
    third = bench.submit(gpus=2)
    assert bench.job(third).state is JobState.DISPATCHED


def test_what_was_expected_from_a_deleted_worker_is_missing() -> None:
    bench, worker, first, _ = a_job_that_finishes_while_another_has_its_gpus()
    bench.let(300.0)
    fleet = bench.orchestrator.fleet
    assert fleet is not None
    bench.do(lambda: drive(administer.delete_worker(fleet, worker.id, ADMIN)))
    assert (bench.job(first).state, bench.job(first).results) == (JobState.COMPLETED, Results.MISSING)


def test_an_offer_of_the_time_of_the_backup_is_not_made_again() -> None:
    bench = Bench()
    restores = with_backups(bench)
    worker = bench.worker().comes()
    job_id = bench.submit()
    restores.create()
    worker.accept(job_id)
    restored(bench, restores)
    answer = worker.register()
    assert (answer.jobs, bench.job(job_id).state) == ([], JobState.QUEUED)
    assert bench.attempts(job_id)[0].outcome is Outcome.EXPIRED_OFFER


@pytest.mark.parametrize("by_heartbeat", [False, True])
def test_a_trainer_that_lost_its_lease_before_a_restore_does_not_go_on(by_heartbeat: bool) -> None:
    bench = Bench()
    restores = with_backups(bench)
    worker = bench.worker().comes()
    job_id = bench.submit()
    worker.accept(job_id)
    restores.create()
    restored(bench, restores)
    runs = HeldAttempt(job_id=job_id, epoch=bench.job(job_id).epoch)
    stands_still = HeldAttempt(job_id=job_id, epoch=bench.job(job_id).epoch, paused=True)
    assert worker.register(runs).stop == []
    answer = worker.beat(stands_still) if by_heartbeat else worker.register(stands_still)
    assert [order.job_id for order in answer.stop] == [job_id]
    assert bench.job(job_id).state is JobState.QUEUED
    assert [order.job_id for order in worker.beat(stands_still).stop] == [job_id]


@pytest.mark.parametrize("calls", range(0, 60, 3))
def test_a_reservation_outlives_a_placement_that_is_begun_anew(calls: int) -> None:
    """A step that needs what memory does not hold is broken off and run again."""
    bench = Bench(Policy(reserve_after_s=10.0))
    one = bench.worker("one", max_jobs=2).comes()
    running = bench.submit(gpus=1)
    large = bench.submit(gpus=2)
    bench.let(12.0)
    one.accept(running)
    one.register(HeldAttempt(job_id=running, epoch=bench.job(running).epoch))
    small = bench.submit(gpus=1)
    two = bench.worker("two")
    two.register()
    bench.orchestrator.store.breaks_off_after = lambda: calls
    two.open_stream()
    assert bench.job(large).worker_id == two.id
    assert bench.job(small).worker_id == one.id
