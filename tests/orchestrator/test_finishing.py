"""Jobs that have trained, and whose results are still on their way: what they hold, and what becomes of them."""

from typing import Any

from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.jobs.job import FINISHING, JobState, Results
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.orchestrator.workers import administer
from simpletuner_fleet.protocol.messages import HeldAttempt, HeldState, ReportStatus, StatusReport
from simpletuner_fleet.sim.people import ADMIN
from tests.sim.transaction_kit import Bench, Station

POLICY = Policy(results_wait_s=3600)


def says(station: Station, job_id: str, status: ReportStatus, **fields: Any) -> None:
    bench = station.bench
    report = StatusReport(
        status=status, epoch=bench.job(job_id).epoch, incarnation=station.incarnation, **fields
    )
    bench.do(lambda: bench.orchestrator.report(station.token, job_id, report))


def a_finishing_job(bench: Bench, station: Station) -> str:
    job_id = bench.submit(gpus=2)
    station.accept(job_id)
    says(station, job_id, ReportStatus.RUNNING, progress={"step": 10})
    says(station, job_id, ReportStatus.RUNNING, progress={"phase": FINISHING, "waiting_for": "a dead disk"})
    return job_id


def held(bench: Bench, job_id: str) -> HeldAttempt:
    return HeldAttempt(job_id=job_id, epoch=bench.job(job_id).epoch, attempt=1, state=HeldState.FINISHED)


def events_of(bench: Bench, job_id: str) -> list[str]:
    entries = bench.orchestrator.store.view.job_events(job_id, 100)
    return [entry.event_type for entry in entries]


def test_the_next_job_runs_while_results_are_on_their_way() -> None:
    bench = Bench(POLICY)
    station = bench.worker().comes()
    finishing = a_finishing_job(bench, station)
    waiting = bench.submit(gpus=2)
    assert bench.job(waiting).state is JobState.DISPATCHED
    station.accept(waiting)
    says(station, finishing, ReportStatus.COMPLETED, results=Results.STORED)
    assert bench.job(finishing).state is JobState.COMPLETED
    third = bench.submit(gpus=2)
    assert bench.job(third).state is JobState.QUEUED, "the second one still runs"
    says(station, waiting, ReportStatus.COMPLETED)
    assert bench.job(third).state is JobState.DISPATCHED


def test_a_job_that_waits_is_given_the_place_as_soon_as_the_training_has_ended() -> None:
    bench = Bench(POLICY)
    station = bench.worker().comes()
    training = bench.submit(gpus=2)
    station.accept(training)
    waiting = bench.submit(gpus=2)
    assert bench.job(waiting).state is JobState.QUEUED
    says(station, training, ReportStatus.RUNNING, progress={"phase": FINISHING})
    assert bench.job(waiting).state is JobState.DISPATCHED


def test_a_restart_of_the_orchestrator_does_not_give_the_gpus_back_to_a_finishing_job() -> None:
    bench = Bench(POLICY)
    station = bench.worker().comes()
    finishing = a_finishing_job(bench, station)
    bench.crash()
    station.register(held(bench, finishing))
    station.open_stream()
    assert bench.job(bench.submit(gpus=2)).state is JobState.DISPATCHED


def test_a_training_that_ended_well_is_not_done_again_because_its_worker_is_away() -> None:
    bench = Bench(POLICY)
    station = bench.worker().comes()
    other = bench.worker("other").comes()
    job_id = a_finishing_job(bench, station)
    for _ in range(20):
        bench.let(30)
        other.beat()
    assert bench.job(job_id).state is JobState.RUNNING
    assert len(bench.attempts(job_id)) == 1
    for _ in range(120):
        bench.let(30)
        other.beat()
    job = bench.job(job_id)
    assert (job.state, job.results) == (JobState.COMPLETED, Results.MISSING)
    assert "away for too long" in str(job.error)
    assert len(bench.attempts(job_id)) == 1


def test_results_that_arrive_after_all_are_stored_and_no_longer_missing() -> None:
    bench = Bench(POLICY)
    station = bench.worker().comes()
    job_id = a_finishing_job(bench, station)
    for _ in range(150):
        bench.let(30)
    assert bench.job(job_id).results is Results.MISSING
    station.register(held(bench, job_id))
    says(station, job_id, ReportStatus.COMPLETED, results=Results.STORED)
    job = bench.job(job_id)
    assert (job.state, job.results, job.error, job.reason) == (JobState.COMPLETED, Results.STORED, None, None)


def test_a_worker_that_comes_back_without_them_leaves_the_results_missing() -> None:
    bench = Bench(POLICY)
    station = bench.worker().comes()
    job_id = a_finishing_job(bench, station)
    station.register()
    assert bench.job(job_id).results is Results.MISSING
    assert bench.job(job_id).state is JobState.COMPLETED


def test_the_deadline_of_a_drain_leaves_a_job_that_only_stores_its_results_alone() -> None:
    bench = Bench(POLICY)
    station = bench.worker().comes()
    finishing = a_finishing_job(bench, station)
    training = bench.submit(gpus=2)
    station.accept(training)
    drain = bench.orchestrator.act(
        lambda fleet: administer.drain(fleet, station.id, "", ADMIN, timeout_s=20.0)
    )
    bench.do(drain)
    trained = HeldAttempt(job_id=training, epoch=bench.job(training).epoch)
    for _ in range(4):
        bench.let(10.0)
        station.beat(held(bench, finishing), trained)
    assert [one.job_id for one in station.beat(held(bench, finishing), trained).stop] == [training]
    assert [attempt.stopping for attempt in bench.attempts(finishing)] == [None]
    assert events_of(bench, finishing).count(EventType.JOB_STOP_REQUESTED) == 0
    assert events_of(bench, training).count(EventType.JOB_STOP_REQUESTED) == 1
    says(station, finishing, ReportStatus.COMPLETED, results=Results.STORED)
    assert bench.job(finishing).state is JobState.COMPLETED
