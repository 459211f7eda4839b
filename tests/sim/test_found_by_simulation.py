"""Defects that a seed brought to light, each told in a few lines."""

import gc
import warnings

import pytest

from simpletuner_fleet.core.errors import StaleAttempt, StoreUnavailable
from simpletuner_fleet.core.jobs.job import Hold, JobState, Outcome
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import Connection
from simpletuner_fleet.protocol.messages import HeldAttempt, ReportStatus, StatusReport
from tests.sim.transaction_kit import Bench, Station


def test_a_worker_that_let_one_offer_pass_hears_again_with_its_next_heartbeat() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    first = bench.submit()
    bench.let(18.0)
    assert bench.attempts(first)[0].outcome is Outcome.EXPIRED_OFFER
    answer = worker.beat()
    assert [offer.job_id for offer in answer.jobs] == [first]


def test_an_older_agent_that_let_one_offer_pass_hears_again_while_its_stream_is_open() -> None:
    bench = Bench()
    bench.worker(older=True).comes()
    job_id = bench.submit()
    bench.let(18.0)
    assert bench.job(job_id).state is JobState.QUEUED
    bench.let(15.0)
    assert bench.job(job_id).state is JobState.DISPATCHED


def test_a_job_is_placed_after_the_commit_that_should_have_placed_it_failed() -> None:
    bench = Bench()
    worker = bench.worker(max_jobs=2).comes()
    job_id = bench.submit()
    bench.let(18.0)
    bench.orchestrator.store.fail_commits(1)
    with pytest.raises(StoreUnavailable):
        worker.beat()
    bench.let(3.0)
    worker.beat()
    bench.let(3.0)
    assert bench.job(job_id).state is JobState.DISPATCHED


def test_a_second_machine_with_the_same_token_never_takes_the_first_ones_job_by_reconnecting() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = bench.submit()
    worker.accept(job_id)
    clone = bench.worker("copy")
    clone.id, clone.token = worker.id, worker.token
    clone.comes()
    clone.register()
    assert bench.job(job_id).state is JobState.RUNNING
    assert bench.attempts(job_id)[0].live


def test_a_gpu_that_its_worker_reports_no_more_goes_to_its_neighbour_once_it_is_free() -> None:
    bench = Bench()
    worker, clone, neighbour = bench.worker(), bench.worker("copy"), bench.worker("neighbour")
    worker.machine = neighbour.machine = "GPU-of-one-machine"
    worker.comes()
    first = bench.submit(gpus=2, max_retries=0)
    worker.accept(first)
    clone.id, clone.token = worker.id, worker.token
    clone.comes()
    neighbour.comes()
    waiting = [bench.submit(gpus=2), bench.submit(gpus=2)]
    while bench.attempts(first)[0].live:
        clone.beat()
        neighbour.beat()
        bench.let(1.0)
    assert {bench.job(one).worker_id for one in waiting} == {worker.id, neighbour.id}


def test_a_late_copy_of_an_older_agents_registration_leaves_it_connected() -> None:
    bench = Bench()
    worker = bench.worker(older=True).comes()
    worker.register()
    assert worker.row.connection is Connection.CONNECTED


def test_an_older_agent_that_says_it_is_idle_has_lost_its_job() -> None:
    bench = Bench()
    worker = bench.worker(older=True).comes()
    job_id = bench.submit()
    report = StatusReport(status=ReportStatus.STARTING)
    bench.do(lambda: bench.orchestrator.report(worker.token, job_id, report))
    worker.beat(status="idle")
    assert bench.job(job_id).state is JobState.RUNNING
    bench.let(31.0)
    worker.beat(status="idle")
    assert bench.attempts(job_id)[0].outcome is Outcome.LOST


def test_a_reservation_does_not_keep_off_a_job_that_stands_before_it() -> None:
    bench = Bench(Policy(reserve_after_s=10.0))
    worker = bench.worker(max_jobs=3).comes()
    first = bench.submit(gpus=2, retry_on_failure=True)
    second = bench.submit(gpus=2)
    bench.let(12.0)
    worker.accept(first)
    worker.register(HeldAttempt(job_id=first, epoch=bench.job(first).epoch))
    failed = StatusReport(status=ReportStatus.FAILED, epoch=bench.job(first).epoch, exit_code=1)
    bench.do(lambda: bench.orchestrator.report(worker.token, first, failed))
    assert bench.job(first).state is JobState.DISPATCHED
    assert bench.job(second).state is JobState.QUEUED


def test_a_clock_set_back_over_a_restart_does_not_keep_a_retry_waiting() -> None:
    bench = Bench(Policy(retry_backoff_s=5.0))
    worker = bench.worker().comes()
    job_id = bench.submit(retry_on_failure=True)
    for _ in range(2):
        worker.accept(job_id)
        failed = StatusReport(status=ReportStatus.FAILED, epoch=bench.job(job_id).epoch, exit_code=1)
        bench.do(lambda failed=failed: bench.orchestrator.report(worker.token, job_id, failed))
    assert bench.job(job_id).hold is Hold.BACKOFF
    bench.orchestrator.wall_offset_s -= 86_400.0
    bench.crash()
    worker.comes()
    for _ in range(12):
        bench.let(30.0)
        worker.beat()
    assert bench.job(job_id).epoch > 2


def test_an_offer_given_back_is_not_offered_to_the_same_worker_again_at_once() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = bench.submit()
    released = StatusReport(status=ReportStatus.RELEASED, epoch=bench.job(job_id).epoch)
    bench.do(lambda: bench.orchestrator.report(worker.token, job_id, released))
    assert bench.job(job_id).state is JobState.QUEUED


def test_a_job_given_back_is_not_offered_again_to_a_worker_that_still_beats_while_it_leaves() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = bench.submit()
    worker.accept(job_id)
    released = StatusReport(status=ReportStatus.RELEASED, reason="preempted", epoch=bench.job(job_id).epoch)
    bench.do(lambda: bench.orchestrator.report(worker.token, job_id, released))
    worker.beat(status="leaving")
    assert bench.job(job_id).state is JobState.QUEUED


def test_a_leaving_worker_with_room_left_is_offered_nothing_more() -> None:
    bench = Bench()
    worker = bench.worker(max_jobs=2).comes()
    running = bench.submit()
    worker.accept(running)
    worker.beat(HeldAttempt(job_id=running, epoch=bench.job(running).epoch), status="leaving")
    assert bench.job(bench.submit()).state is JobState.QUEUED
    assert bench.job(running).state is JobState.RUNNING


def test_an_absurd_epoch_does_not_use_up_the_numbers() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    worker.register(HeldAttempt(job_id="j_none", epoch=2**62))
    assert bench.job(bench.submit()).epoch < 1000


def test_whoever_was_kept_off_a_worker_is_placed_when_the_reservation_ends() -> None:
    bench = Bench(Policy(reserve_after_s=10.0))
    one = bench.worker("one", max_jobs=2).comes()
    running = bench.submit(gpus=1)
    large = bench.submit(gpus=2)
    bench.let(12.0)
    one.accept(running)
    one.register(HeldAttempt(job_id=running, epoch=bench.job(running).epoch))
    small = bench.submit(gpus=1)
    assert bench.job(small).state is JobState.QUEUED
    bench.worker("two").comes()
    assert bench.job(large).state is JobState.DISPATCHED
    assert bench.job(small).state is JobState.DISPATCHED


def test_a_health_check_that_ends_halfway_leaves_nothing_begun_behind() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = bench.submit(retry_on_failure=True)
    for _ in range(2):
        worker.accept(job_id)
        failed = StatusReport(status=ReportStatus.FAILED, epoch=bench.job(job_id).epoch, exit_code=1)
        bench.do(lambda failed=failed: bench.orchestrator.report(worker.token, job_id, failed))
    bench.orchestrator.store.crash_at = "before commit"
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        bench.let(20.0)
        gc.collect()
    assert [str(warning.message) for warning in heard] == []


def an_attempt_given_up_whose_gpus_another_job_has() -> tuple[Bench, Station, str, str]:
    bench = Bench()
    worker = bench.worker(max_jobs=2).comes()
    first = bench.submit(gpus=2)
    worker.accept(first)
    urgent = bench.submit(gpus=2, priority=100)
    while bench.job(urgent).state is JobState.QUEUED:
        bench.let(10.0)
        worker.beat()
    worker.accept(urgent)
    assert bench.attempts(first)[0].outcome is Outcome.LOST
    assert bench.attempts(urgent)[0].live
    return bench, worker, first, urgent


def test_an_attempt_thought_lost_does_not_go_on_with_gpus_that_another_job_has_by_now() -> None:
    bench, worker, first, urgent = an_attempt_given_up_whose_gpus_another_job_has()
    epoch = bench.attempts(first)[0].epoch
    answer = worker.beat(HeldAttempt(job_id=first, epoch=epoch))
    assert [order.job_id for order in answer.stop] == [first]
    assert bench.job(first).state is JobState.QUEUED
    report = StatusReport(status=ReportStatus.RUNNING, epoch=epoch)
    with pytest.raises(StaleAttempt):
        bench.do(lambda: bench.orchestrator.report(worker.token, first, report))
    assert bench.attempts(urgent)[0].live


def test_what_an_attempt_thought_lost_has_completed_counts_whoever_has_its_gpus() -> None:
    bench, worker, first, urgent = an_attempt_given_up_whose_gpus_another_job_has()
    report = StatusReport(status=ReportStatus.COMPLETED, epoch=bench.attempts(first)[0].epoch)
    bench.do(lambda: bench.orchestrator.report(worker.token, first, report))
    assert bench.job(first).state is JobState.COMPLETED
    assert bench.attempts(urgent)[0].live


def test_two_workers_that_name_no_gpus_do_not_have_the_same_ones() -> None:
    bench = Bench()
    first, second = (bench.worker(name, older=True).comes() for name in ("one", "two"))
    uuids = [gpu.uuid for worker in (first, second) for gpu in worker.row.gpus]
    assert len(set(uuids)) == len(uuids) == 2


def test_what_an_attempt_calls_spoiled_is_gone_on_from_by_nobody_however_it_says_that_it_ended() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = bench.submit()
    worker.accept(job_id)
    epoch = bench.job(job_id).epoch
    bench.orchestrator.store_checkpoint(worker.token, job_id, epoch, 75)
    ending = StatusReport(status=ReportStatus.CANCELLED, epoch=epoch, restart=True, resume_below=5)
    bench.do(lambda: bench.orchestrator.report(worker.token, job_id, ending))
    assert bench.attempts(job_id)[0].resume_below == 5
    assert bench.orchestrator.store.view.newest_checkpoint(job_id) is None
