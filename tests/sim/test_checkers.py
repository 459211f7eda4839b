"""A checker that never complains proves nothing: each is shown what it must refuse."""

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.audit import AuditEntry, Witness
from simpletuner_fleet.core.jobs.job import AttemptState, JobState, Outcome
from simpletuner_fleet.core.people.approvals import asked_for
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import AdminState, Connection
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.orchestrator import submit
from simpletuner_fleet.sim.checks.checkers import (
    attempt_problems,
    audit_problems,
    dependency_problems,
    follow_everything,
    gpu_problems,
    index_problems,
    job_problems,
    offer_problems,
    store_problems,
    unrest,
    worker_problems,
)
from simpletuner_fleet.sim.checks.truth import Truth
from simpletuner_fleet.sim.people import ADMIN
from simpletuner_fleet.sim.world import Violation, drive
from tests.core.builders import NOW, a_worker, an_attempt, holding
from tests.sim.transaction_kit import Bench

RUNNING = an_attempt(accepted_at=NOW)


def names(problems: list[tuple[str, str]]) -> set[str]:
    return {name for name, _ in problems}


def test_a_sound_job_has_no_problems() -> None:
    assert job_problems(holding(), [RUNNING]) == []


@pytest.mark.parametrize(
    ("change", "promise"),
    [
        ({"state": JobState.QUEUED}, "S13"),
        ({"epoch": 2}, "S2"),
        ({"worker_id": "w_2"}, "S2"),
        ({"losses": 1}, "S9"),
        ({"attempts": 2}, "S9"),
        ({"state": JobState.COMPLETED}, "S1"),
    ],
)
def test_a_job_that_does_not_fit_its_attempts_is_seen(change: dict[str, object], promise: str) -> None:
    assert promise in names(job_problems(replace(holding(), **change), [RUNNING]))


def test_going_on_from_where_a_watchdog_found_it_spoiled_is_seen() -> None:
    spoiled = replace(
        RUNNING, state=AttemptState.ENDED, outcome=Outcome.FAILED, ended_at=NOW, resume_below=60
    )
    job = holding(attempts=2, failures=1, attempt_id="a_2", epoch=2)
    for step, wanted in ((40, set()), (60, {"S9"})):
        again = replace(RUNNING, id="a_2", number=2, epoch=2, resumed_from_step=step)
        assert names(job_problems(job, [spoiled, again])) == wanted


def test_two_live_attempts_of_one_job_are_seen() -> None:
    other = replace(RUNNING, id="a_2", epoch=2)
    assert "S3" in names(job_problems(holding(), [RUNNING, other]))


@pytest.mark.parametrize(
    "change",
    [{"admin": AdminState.DRAINING}, {"connection": Connection.OFFLINE}, {"trainers": ()}, {"gpus": ()}],
)
def test_an_offer_to_a_worker_that_must_get_none_is_seen(change: dict[str, object]) -> None:
    worker = replace(a_worker(), **change)
    assert names(offer_problems(RUNNING, holding(), worker, [RUNNING])) == {"S10"}


def test_a_gpu_given_twice_is_seen() -> None:
    both = [RUNNING, replace(RUNNING, id="a_2")]
    assert names(worker_problems(a_worker(), both, both)) == {"S10"}
    assert worker_problems(a_worker(), both, both[:1]) == []
    assert names(gpu_problems([RUNNING, replace(RUNNING, id="a_2", worker_id="w_2")])) == {"S10"}
    assert not gpu_problems([RUNNING, replace(RUNNING, id="a_2", gpus=("GPU-w_2-0",))])


def test_two_epochs_at_once_are_seen_when_they_happen() -> None:
    truth = Truth()
    truth.begins("j_1", 1, "m0", fenced=True, now=0.0)
    with pytest.raises(Violation, match="S3"):
        truth.begins("j_1", 2, "m1", fenced=True, now=1.0)


def test_a_second_trainer_of_one_turn_is_seen() -> None:
    truth = Truth()
    run = truth.begins("j_1", 1, "m0", fenced=True, now=0.0)
    truth.ends(run, "completed")
    with pytest.raises(Violation, match="S4"):
        truth.begins("j_1", 1, "m0", fenced=True, now=2.0)


def test_an_acknowledged_job_that_is_gone_is_seen() -> None:
    assert names(store_problems(Bench().orchestrator.store.view, ["j_gone"])) == {"S1"}


def test_an_ended_job_whose_approval_is_still_to_be_decided_is_seen() -> None:
    bench = Bench()
    fleet, view = bench.orchestrator.fleet, bench.orchestrator.store.view
    assert fleet is not None
    job_id = bench.submit()
    bench.do(lambda: drive(submit.cancel(fleet, job_id, ADMIN)))
    assert store_problems(view, [job_id]) == []
    pending = asked_for(bench.job(job_id), [], (), NOW)
    drive(fleet.act(lambda transaction: transaction.tx.put_approval(pending)))
    assert names(store_problems(view, [job_id])) == {"S1"}


def test_an_old_index_and_a_fleet_at_work_are_seen() -> None:
    bench = Bench()
    bench.worker().comes()
    stale = FleetIndex()
    follow_everything(stale, bench.orchestrator.store.view)
    stale.unplaced = False
    job_id = bench.submit()
    assert names(index_problems(stale, bench.orchestrator.store.view)) == {"index"}
    assert unrest(bench.orchestrator.store.view, [job_id]) is not None


def test_a_changed_and_a_cut_off_log_are_seen() -> None:
    bench = Bench()
    bench.worker().comes()
    entries: list[AuditEntry] = bench.orchestrator.store.view.audit_range(0, 100)
    assert audit_problems(entries) == []
    assert audit_problems([replace(entries[0], ip="6.6.6.6"), *entries[1:]])
    last = entries[-1]
    assert audit_problems(entries[:-1], [Witness("w", last.seq, last.hash)])


def test_an_attempt_must_say_how_it_ended() -> None:
    assert attempt_problems(RUNNING) == []
    assert attempt_problems(replace(RUNNING, state=AttemptState.ENDED, outcome=Outcome.LOST))
    assert attempt_problems(replace(RUNNING, accepted_at=None))


def test_a_job_that_starts_beside_a_bad_end_or_is_given_up_without_one_is_seen() -> None:
    bench = Bench()
    first, second = bench.submit(), bench.submit()
    waiting = bench.submit(depends_on=[first, second])
    view = bench.orchestrator.store.view
    assert dependency_problems(view, bench.job(waiting)) == []
    queued = replace(bench.job(waiting), state=JobState.QUEUED)
    assert names(dependency_problems(view, queued)) == {"D1"}
    given_up = replace(queued, state=JobState.FAILED, reason="dependency_failed")
    assert names(dependency_problems(view, given_up)) == {"D2"}
    cancelled = replace(given_up, state=JobState.CANCELLED, reason="cancelled")
    assert dependency_problems(view, cancelled) == []


def test_a_job_that_was_not_told_of_a_bad_end_is_not_at_rest() -> None:
    bench = Bench(Policy(told_at_once=1))
    first, second = bench.submit(), bench.submit()
    waiting = [bench.submit(depends_on=[first, second]) for _ in range(3)]
    fleet = bench.orchestrator.fleet
    assert fleet is not None
    bench.do(lambda: drive(submit.cancel(fleet, first, ADMIN)))
    view = bench.orchestrator.store.view
    assert [bench.job(one).state for one in waiting] == [JobState.FAILED, JobState.BLOCKED, JobState.BLOCKED]
    assert unrest(view, waiting) == f"{waiting[1]} has not been told that {first} ended badly"
    bench.let(15.0)
    assert unrest(view, waiting) is None
    assert {bench.job(one).state for one in waiting} == {JobState.FAILED}


def test_who_is_left_is_told_by_whoever_is_started_after_a_crash() -> None:
    bench = Bench(Policy(told_at_once=1))
    first = bench.submit()
    waiting = [bench.submit(depends_on=[first]) for _ in range(3)]
    fleet = bench.orchestrator.fleet
    assert fleet is not None
    bench.do(lambda: drive(submit.cancel(fleet, first, ADMIN)))
    bench.crash()
    assert bench.job(waiting[2]).state is JobState.BLOCKED
    bench.let(15.0)
    assert {bench.job(one).state for one in waiting} == {JobState.FAILED}
