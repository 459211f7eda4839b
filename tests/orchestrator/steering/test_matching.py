"""An act on all matching jobs, while somebody else acts on the same ones."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from simpletuner_fleet.core.jobs.finding import JobSearch
from simpletuner_fleet.core.jobs.job import Job, JobState
from simpletuner_fleet.core.people.visibility import VisibilityScope
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.setting_documents import LIMITS_SETTING
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.engine.visibility import ScopedFleet
from simpletuner_fleet.orchestrator import limits, submit
from simpletuner_fleet.orchestrator.steering import matching
from simpletuner_fleet.orchestrator.steering.matching import ActedOn, MassAct
from simpletuner_fleet.ports import JobFilter, View
from simpletuner_fleet.sim.people import ADMIN
from simpletuner_fleet.sim.world import drive
from tests.sim.transaction_kit import USER, Bench

JobsStep = Callable[[Transaction, Job], None]


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "JOBS_PER_TRANSACTION", 1)


def act(
    bench: Bench, kind: MassAct, step: JobsStep, where: JobFilter, expected: int, fleet: Fleet | None = None
) -> ActedOn:
    fleet = fleet or fleet_of(bench)
    acting = matching.act_on_all(
        fleet,
        lambda view: (where, False),
        kind,
        step,
        search=JobSearch(),
        actor=ADMIN,
        expected=expected,
        cursor=None,
    )
    acted: ActedOn = bench.do(lambda: drive(acting))
    return acted


def fleet_of(bench: Bench) -> Fleet:
    assert bench.orchestrator.fleet is not None
    return bench.orchestrator.fleet


def tries_of(bench: Bench, job_id: str) -> int:
    jobs = bench.orchestrator.store.view.jobs_page(JobFilter(), None, 99)
    return sum(job.retry_of == job_id for job in jobs)


def test_a_job_that_somebody_else_has_tried_again_meanwhile_is_not_tried_once_more() -> None:
    bench = Bench()
    older, newer = bench.submit(), bench.submit()
    for job_id in (older, newer):
        bench.do(lambda job_id=job_id: drive(submit.cancel(fleet_of(bench), job_id, ADMIN)))

    def step(transaction: Transaction, job: Job) -> None:
        submit.retry_in(transaction, job.id, USER)
        if job.id == newer:  # which has its turn first
            submit.retry_in(transaction, older, USER)

    acted = act(bench, MassAct.RETRY, step, JobFilter(states=(JobState.CANCELLED,)), 2)
    assert (acted.done, acted.refused) == (1, 0)
    assert [tries_of(bench, job_id) for job_id in (older, newer)] == [1, 1]
    entries = bench.orchestrator.store.view.audit_range(0, 100)
    assert [one.details["jobs"] for one in entries if one.event_type == "job.chosen_by_filter"] == [1]


def test_a_job_that_began_meanwhile_is_not_cancelled_where_queued_ones_were_searched_for() -> None:
    bench = Bench()
    bench.worker().comes()
    bench.do(lambda: drive(limits.set_limits(fleet_of(bench), Limits(global_running=0), ADMIN)))
    older, newer = bench.submit(), bench.submit()

    def step(transaction: Transaction, job: Job) -> None:
        submit.cancel_in(transaction, job.id, ADMIN, False, None)
        transaction.tx.delete_setting(LIMITS_SETTING)
        transaction.limits_changed()

    acted = act(bench, MassAct.CANCEL, step, JobFilter(states=(JobState.QUEUED,)), 2)
    assert (acted.done, acted.refused) == (1, 0)
    assert bench.job(newer).state is JobState.CANCELLED
    assert bench.job(older).state is JobState.DISPATCHED


def test_only_what_the_caller_may_see_is_acted_on() -> None:
    bench = Bench()
    private, seen = bench.submit(visibility="private"), bench.submit()
    scoped = ScopedFleet(fleet_of(bench), lambda: VisibilityScope(ids=frozenset({"u_else"})))

    def step(transaction: Transaction, job: Job) -> None:
        submit.cancel_in(transaction, job.id, ADMIN, False, None)

    acted = act(bench, MassAct.CANCEL, step, JobFilter(), 1, scoped)
    assert acted.done == 1
    assert (bench.job(private).state, bench.job(seen).state) == (JobState.QUEUED, JobState.CANCELLED)


def test_no_more_jobs_are_acted_on_than_were_confirmed() -> None:
    """Another is submitted just after they were counted: nobody has agreed to its end."""
    bench = Bench()
    counted, fleet = bench.submit(), fleet_of(bench)
    late: list[str] = []

    class BusyFleet:
        act = staticmethod(fleet.act)

        async def scan(self, look: Callable[[View], Any]) -> Any:
            value = await fleet.scan(look)
            if not late:
                late.append(bench.submit())
            return value

    def step(transaction: Transaction, job: Job) -> None:
        submit.cancel_in(transaction, job.id, ADMIN, False, None)

    acted = act(bench, MassAct.CANCEL, step, JobFilter(), 1, cast(Fleet, BusyFleet()))
    assert acted.done == 1
    assert (bench.job(counted).state, bench.job(late[0]).state) == (JobState.CANCELLED, JobState.QUEUED)
