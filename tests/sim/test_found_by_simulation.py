"""Defects that a seed brought to light, each told in a few lines."""

import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.job import JobState, Outcome
from simpletuner_fleet.core.worker import Connection
from simpletuner_fleet.protocol.messages import ReportStatus, StatusReport
from tests.sim.desk_kit import Bench


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
