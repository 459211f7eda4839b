"""A database that was restored from a backup: what it must not believe, and how long it only listens."""

import msgspec
import pytest

from simpletuner_fleet.core.errors import InvalidToken
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.restoring import RESTORED, RestoreNote
from simpletuner_fleet.orchestrator.workers import administer
from simpletuner_fleet.sim.network import Link, Weather
from simpletuner_fleet.sim.people import ADMIN, People
from simpletuner_fleet.sim.restores import LOCKED_FOR_S, Restores
from simpletuner_fleet.sim.world import drive
from tests.sim.transaction_kit import Bench


def with_backups(bench: Bench) -> Restores:
    people = People(bench.world, bench.orchestrator, Link(bench.world, "people", Weather()), [])
    return Restores(bench.world, bench.orchestrator, people)


def restored(bench: Bench, restores: Restores) -> None:
    restores.restore()
    bench.let(LOCKED_FOR_S)


def test_nothing_is_placed_after_a_restore_until_workers_were_heard_and_a_restart_changes_nothing() -> None:
    bench = Bench()
    worker = bench.worker()
    note = RestoreNote(backup_at=0.0, backup_epoch=0, restored_at=0.0, credentials="journal")
    text = msgspec.json.encode(note).decode()
    fleet = bench.orchestrator.fleet
    assert fleet is not None
    drive(fleet.act(lambda transaction: transaction.tx.put_setting(RESTORED, text)))
    bench.crash()
    worker.comes()
    job_id = bench.submit()
    assert bench.job(job_id).state is JobState.QUEUED
    bench.crash()
    worker.comes()
    assert bench.job(job_id).state is JobState.QUEUED
    bench.let(260.0)
    worker.beat()
    bench.let(3.0)
    assert bench.attempts(job_id)


def test_epochs_go_on_where_they_were_though_the_rows_are_older() -> None:
    bench = Bench()
    restores = with_backups(bench)
    worker = bench.worker().comes()
    restores.create()
    job_id = bench.submit()
    given = bench.job(job_id).epoch
    restores.restore()
    bench.let(LOCKED_FOR_S)
    worker.comes()
    again = bench.submit()
    bench.let(260.0)
    worker.beat()
    bench.let(3.0)
    assert bench.orchestrator.store.view.job(job_id) is None
    assert bench.job(again).epoch > given


def test_a_token_that_was_rotated_since_the_backup_stays_unbelieved() -> None:
    bench = Bench()
    restores = with_backups(bench)
    worker = bench.worker().comes()
    restores.create()
    fleet = bench.orchestrator.fleet
    assert fleet is not None
    bench.do(lambda: drive(administer.rotate_token(fleet, worker.id, ADMIN)))
    restores.restore()
    bench.let(LOCKED_FOR_S)
    with pytest.raises(InvalidToken):
        worker.register()
