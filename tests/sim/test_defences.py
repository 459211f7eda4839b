"""What went wrong elsewhere, asked of the real orchestrator directly: each story in a few lines of virtual time."""

import pytest

from simpletuner_fleet.core.errors import IdempotencyMismatch, InvalidToken, Superseded
from simpletuner_fleet.core.jobs.job import JobState, Outcome
from simpletuner_fleet.core.workers.worker import AdminState, Connection
from simpletuner_fleet.orchestrator.workers import administer
from simpletuner_fleet.protocol.messages import Goodbye, HeldAttempt, ReportStatus, StatusReport
from simpletuner_fleet.sim.people import ADMIN
from simpletuner_fleet.sim.world import drive
from tests.sim.transaction_kit import Bench, Station


def fleet_with_a_running_job() -> tuple[Bench, Station, str]:
    bench = Bench()
    worker = bench.worker().comes()
    job_id = bench.submit()
    worker.accept(job_id)
    return bench, worker, job_id


def drain(bench: Bench, worker: Station) -> None:
    fleet = bench.orchestrator.fleet
    assert fleet is not None
    bench.do(lambda: drive(administer.drain(fleet, worker.id, "", ADMIN)))


def test_an_agent_that_was_superseded_cannot_come_back_by_registering_again() -> None:
    bench = Bench()
    worker = bench.worker().comes()
    old = worker.incarnation
    worker.incarnation = "i_new"
    worker.register()
    worker.incarnation = old
    with pytest.raises(Superseded):
        worker.register()


def test_a_silent_draining_worker_loses_its_job_like_any_other() -> None:
    bench, worker, job_id = fleet_with_a_running_job()
    drain(bench, worker)
    bench.let(130.0)
    assert bench.attempts(job_id)[0].outcome is Outcome.LOST
    assert worker.row.connection is Connection.OFFLINE


def test_a_restart_gives_everybody_the_whole_timeout_again() -> None:
    bench, worker, job_id = fleet_with_a_running_job()
    bench.let(100.0)
    bench.crash()
    bench.let(100.0)
    assert bench.job(job_id).state is JobState.RUNNING
    assert worker.row.connection is Connection.RECONNECTING


def test_the_job_of_a_worker_that_never_returns_after_a_restart_is_queued_again() -> None:
    bench, worker, job_id = fleet_with_a_running_job()
    bench.crash()
    bench.let(130.0)
    assert bench.attempts(job_id)[0].outcome is Outcome.LOST
    assert worker.row.connection is Connection.OFFLINE


def test_a_job_its_worker_does_not_name_any_more_is_lost_even_if_the_worker_lives() -> None:
    bench, worker, job_id = fleet_with_a_running_job()
    bench.crash()
    for _ in range(5):
        bench.let(30.0)
        worker.beat()
    assert bench.attempts(job_id)[0].outcome is Outcome.LOST


def test_an_offer_that_nobody_accepts_is_back_within_fifteen_seconds_and_a_round() -> None:
    bench = Bench()
    bench.worker().comes()
    job_id = bench.submit()
    bench.let(18.1)
    assert bench.job(job_id).state is JobState.QUEUED
    assert bench.job(job_id).charged == 0


def test_a_rotated_token_is_refused_and_its_stream_is_cut() -> None:
    bench = Bench()
    worker = bench.worker()
    worker.register()
    stream = worker.open_stream()
    fleet = bench.orchestrator.fleet
    assert fleet is not None
    bench.do(lambda: drive(administer.rotate_token(fleet, worker.id, ADMIN)))
    assert stream not in bench.orchestrator.streams()
    with pytest.raises(InvalidToken):
        worker.beat()


def test_one_key_is_one_job_and_one_request() -> None:
    bench = Bench()
    first = bench.submit(idempotency_key="k")
    assert bench.submit(idempotency_key="k") == first
    with pytest.raises(IdempotencyMismatch):
        bench.submit(idempotency_key="k", priority=3)


def test_a_registration_leaves_labels_drain_and_running_job_as_they_are() -> None:
    bench, worker, job_id = fleet_with_a_running_job()
    fleet = bench.orchestrator.fleet
    assert fleet is not None
    bench.do(lambda: drive(administer.set_labels(fleet, worker.id, {"team": "nlp"}, ADMIN)))
    drain(bench, worker)
    worker.register(HeldAttempt(job_id=job_id, epoch=bench.job(job_id).epoch))
    assert worker.row.labels == {"team": "nlp"}
    assert worker.row.admin is AdminState.DRAINING
    assert bench.job(job_id).state is JobState.RUNNING


def test_a_goodbye_gives_the_jobs_back_at_once_and_uncharged() -> None:
    bench, worker, job_id = fleet_with_a_running_job()
    bench.do(lambda: bench.orchestrator.goodbye(worker.token, Goodbye(incarnation=worker.incarnation)))
    assert bench.job(job_id).state is JobState.QUEUED
    assert bench.job(job_id).charged == 0


def test_the_end_of_an_old_stream_leaves_the_new_one_alone() -> None:
    bench = Bench()
    worker = bench.worker()
    worker.register()
    old = worker.open_stream()
    worker.open_stream()
    bench.orchestrator.peer_closed(old)
    assert bench.orchestrator.lead.serving.hub.streaming(worker.id)
    assert bench.job(bench.submit()).state is JobState.DISPATCHED


def test_a_completion_after_the_job_was_given_away_changes_nothing() -> None:
    bench, worker, job_id = fleet_with_a_running_job()
    old_epoch = bench.job(job_id).epoch
    bench.let(130.0)
    other = bench.worker("other").comes()
    other.accept(job_id)
    late = StatusReport(status=ReportStatus.COMPLETED, epoch=old_epoch, incarnation=worker.incarnation)
    with pytest.raises(Exception, match="no longer"):
        bench.do(lambda: bench.orchestrator.report(worker.token, job_id, late))
    assert bench.job(job_id).state is JobState.RUNNING
    assert bench.job(job_id).worker_id == other.id


def test_every_act_of_one_transaction_has_its_entry() -> None:
    bench, worker, job_id = fleet_with_a_running_job()
    event_types = [entry.event_type for entry in bench.orchestrator.store.view.job_events(job_id, 10)]
    assert event_types == ["job.submitted", "job.dispatched", "job.accepted"]
    statuses = [
        entry.details["to"]
        for entry in bench.orchestrator.store.view.audit_range(0, 100)
        if entry.event_type == "worker.status_changed" and entry.target_id == worker.id
    ]
    assert statuses == ["idle", "busy"]


def test_every_one_of_many_silent_workers_is_noticed() -> None:
    bench = Bench()
    workers = [bench.worker(f"m{number}").comes() for number in range(130)]
    bench.let(130.0)
    assert {worker.row.connection for worker in workers} == {Connection.OFFLINE}
