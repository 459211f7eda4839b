"""Machines that cost and do nothing, and the policy for jobs whose machines are taken away."""

from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Outcome
from simpletuner_fleet.core.provisioning.growth import Demand, grow
from simpletuner_fleet.core.provisioning.machine import MachineState
from simpletuner_fleet.core.provisioning.upkeep import WorkerFacts, facts_of
from simpletuner_fleet.core.provisioning.useless import WhyUseless, useless
from simpletuner_fleet.core.workers.worker import Connection, WorkerType
from tests.core.builders import ENDS, NOW, a_worker, an_attempt
from tests.core.provisioning.provisioning_kit import (
    a_fleet,
    a_machine,
    a_pool,
    a_snapshot,
    an_offer,
    idle,
    waiting,
    working,
)

SILENT = WorkerFacts(connected=False, busy=True, idle_since=NOW, offline_since=NOW - 300.0)


@pytest.mark.parametrize(
    ("state", "worker", "use", "since"),
    [
        (MachineState.JOINED, idle(NOW - 61.0), WhyUseless.IDLE, NOW - 61.0),
        (MachineState.DRAINING, idle(NOW - 90.0), WhyUseless.IDLE, NOW - 90.0),
        (MachineState.ASKED, None, WhyUseless.NOT_JOINED, NOW - 1000.0),
        (MachineState.BOOTING, None, WhyUseless.NOT_JOINED, NOW - 1000.0),
        (MachineState.JOINED, SILENT, WhyUseless.SILENT, NOW - 300.0),
        (MachineState.JOINED, None, WhyUseless.SILENT, NOW - 900.0),
    ],
)
def test_whoever_costs_and_does_nothing_is_named(
    state: MachineState, worker: WorkerFacts | None, use: WhyUseless, since: float
) -> None:
    idleness = useless(a_machine(state=state), worker, NOW)
    assert idleness is not None
    assert (idleness.use, idleness.since) == (use, since)
    assert useless(a_machine(state=state, hourly_micros=0), worker, NOW) is None


def test_what_is_to_be_gone_and_is_not_is_named_too() -> None:
    late = a_machine(state=MachineState.DESTROYING, destroying_at=NOW - 600.0)
    idleness = useless(late, None, NOW)
    assert idleness is not None
    assert (idleness.use, idleness.since) == (WhyUseless.NOT_GONE, NOW - 600.0)


def test_whoever_works_or_has_just_ended_its_job_or_costs_nothing_is_not() -> None:
    assert useless(a_machine(), working(), NOW) is None
    assert useless(a_machine(), idle(NOW - 59.0), NOW) is None
    assert useless(a_machine(state=MachineState.WANTED), None, NOW) is None
    assert useless(a_machine(state=MachineState.GONE, gone_at=NOW), None, NOW) is None


@pytest.mark.parametrize(
    ("fields", "leaves"),
    [
        ({"chosen_type": WorkerType.EPHEMERAL}, True),
        ({"interruption": ENDS}, True),
        ({}, False),
    ],
)
def test_a_worker_whose_machine_was_to_be_taken_away_is_not_waited_for(
    fields: dict[str, Any], leaves: bool
) -> None:
    away = a_worker(connection=Connection.OFFLINE, offline_since=NOW - 5.0, **fields)
    assert facts_of(a_machine(), away, [], busy=False).leaves is leaves
    assert not facts_of(a_machine(), a_worker(**fields), [], busy=False).leaves


def given(
    accepted: float | None, ended: float, *, started: float | None = None, outcome: Outcome = Outcome.RELEASED
) -> Attempt:
    return an_attempt(
        state=AttemptState.ENDED, accepted_at=accepted, started_at=started, ended_at=ended, outcome=outcome
    )


def idle_from(*newest: Attempt) -> float:
    """By attempts of a worker whose machine joined at NOW - 900, told as seconds after that."""
    return facts_of(a_machine(), a_worker(), newest, busy=False).idle_since - (NOW - 900.0)


def test_only_a_training_begins_the_idle_time_anew() -> None:
    joined = NOW - 900.0
    trained = given(joined + 10.0, joined + 200.0, started=joined + 20.0, outcome=Outcome.FAILED)
    never_taken = given(None, joined + 500.0)
    not_started = given(joined + 600.0, joined + 630.0)
    beside_it = given(joined + 610.0, joined + 640.0)
    assert idle_from() == 0.0
    assert idle_from(trained) == 200.0
    assert idle_from(never_taken, trained) == 200.0, "an offer that was not taken"
    assert idle_from(not_started, never_taken, trained) == 230.0, (
        "a job that could not be started is left out"
    )
    assert idle_from(beside_it, not_started, trained) == 240.0, "what was at the same time counts once"
    assert idle_from(not_started) == 30.0
    unsaid = given(joined + 600.0, joined + 630.0, outcome=Outcome.COMPLETED)
    assert idle_from(unsaid, trained) == 630.0, "it has run, whether that was told or not"


def test_of_trainings_side_by_side_the_one_that_ended_last_counts() -> None:
    joined = NOW - 900.0
    long = given(joined, joined + 700.0, started=joined + 1.0, outcome=Outcome.COMPLETED)
    short = given(joined + 50.0, joined + 100.0, started=joined + 51.0, outcome=Outcome.COMPLETED)
    assert idle_from(short, long) == 700.0


def chosen(interruptions: int, *offers: Any, **request: Any) -> list[str]:
    pool = a_pool(market="spot_first", **request)
    one = waiting()
    demand = Demand(job=replace(one.job, interruptions=interruptions), count=1)
    growth = grow([pool], {pool.name: a_snapshot(offers=offers)}, {pool.name: []}, a_fleet(demand))
    return [wanted.offer.id for wanted in growth.wanted]


def test_after_so_many_interruptions_a_job_is_brought_a_machine_on_demand() -> None:
    spot, firm = an_offer("spot", 1_000_000, spot=True), an_offer("firm", 2_000_000)
    assert [chosen(times, spot, firm) for times in range(4)] == [["spot"], ["spot"], ["firm"], ["firm"]]
    assert chosen(0, spot, firm, spot_tries=0) == ["firm"]
    assert chosen(9, spot) == ["spot"], "better than none"
    assert chosen(9, spot, firm, max_price_micros=1_500_000) == ["spot"], "within what the pool may spend"
