"""Several orchestrators on one database, on virtual time: who promises what, and when."""

from functools import partial
from typing import Any

import pytest

from simpletuner_fleet.core.leadership import LEASE_S
from simpletuner_fleet.protocol.messages import Heartbeat, HeartbeatAnswer
from simpletuner_fleet.sim.network import UNREACHABLE, Answered, Link, Said, Weather
from simpletuner_fleet.sim.server.process import Process
from simpletuner_fleet.sim.world import Violation
from tests.sim.transaction_kit import Bench, Station


@pytest.fixture
def bench() -> Bench:
    return Bench(clock_rates=(1.0, 1.02))


def beat_at(bench: Bench, process: Process, worker: Station) -> list[Any]:
    answers: list[Any] = []
    message = Heartbeat(attempts=[], incarnation=worker.incarnation)
    bench.orchestrator.receive_at(
        process, lambda: bench.orchestrator.heartbeat(worker.token, message), answers.append
    )
    return answers


def other_than(bench: Bench, process: Process) -> Process:
    return next(one for one in bench.orchestrator.processes if one is not process)


def test_a_follower_passes_a_heartbeat_on_and_brings_the_leaders_answer_back(bench: Bench) -> None:
    worker = bench.worker().comes()
    answers = beat_at(bench, other_than(bench, bench.orchestrator.lead), worker)
    bench.let(1.0)
    (said,) = answers
    assert isinstance(said, Said)
    assert isinstance(said.outcome, HeartbeatAnswer)


@pytest.mark.parametrize("trouble", ["killed", "frozen", "cut off"])
def test_another_leads_in_a_later_term_once_the_lease_is_over(bench: Bench, trouble: str) -> None:
    first = bench.orchestrator.lead
    worker = bench.worker().comes()
    if trouble == "killed":
        first.crash()
    elif trouble == "frozen":
        first.stall(60.0)
    else:
        first.cut_from_database(60.0)
    bench.let(LEASE_S + 1.0)
    assert bench.orchestrator.lead is not first
    assert len(bench.orchestrator.store.terms) == 2
    worker.comes()
    assert isinstance(worker.beat(), HeartbeatAnswer)


def test_a_leader_that_was_frozen_past_its_lease_answers_nothing_it_had_decided_before(bench: Bench) -> None:
    first = bench.orchestrator.lead
    worker = bench.worker().comes()
    first.freeze_after_commit(10.0)
    answers: list[Any] = []
    first.receive(lambda: bench.orchestrator.register(worker.token, worker.registration([])), answers.append)
    asked_meanwhile = beat_at(bench, first, worker)
    bench.let(11.0)
    assert answers == [UNREACHABLE]
    bench.let(1.0)
    assert all(
        not isinstance(one, Said) or one.term > bench.orchestrator.store.terms[0] for one in asked_meanwhile
    )


def test_a_leader_whose_lease_is_over_promises_nothing_though_nobody_has_taken_over(bench: Bench) -> None:
    first = bench.orchestrator.lead
    worker = bench.worker().comes()
    other_than(bench, first).crash()
    first.cut_from_database(60.0)
    bench.let(LEASE_S)
    assert beat_at(bench, first, worker) == [UNREACHABLE]


def test_an_answer_of_a_replaced_leader_is_weather(bench: Bench) -> None:
    link, heard = Link(bench.world, "m", Weather()), list[Any]()
    for term in (8, 7):
        link.call(partial(_says, term), heard.append)
        bench.let(1.0)
    assert heard == [8, UNREACHABLE]


def _says(term: int, reply: Answered) -> None:
    reply(Said(term, term))


def test_the_checker_sees_a_promise_of_an_ended_term(bench: Bench) -> None:
    first = bench.orchestrator.lead
    first.stall(60.0)
    bench.let(LEASE_S + 1.0)
    assert first.standing is not None
    with pytest.raises(Violation, match="T1"):
        first.standing.promise(None)


def test_a_former_leader_that_starts_while_it_is_cut_off_blinds_nobody(bench: Bench) -> None:
    former = bench.orchestrator.lead
    former.cut_from_database(LEASE_S + 120.0)
    bench.let(LEASE_S + 1.0)
    leader = bench.orchestrator.lead
    assert leader is not former
    former.begin()
    worker = bench.worker()
    assert worker.id not in former.index.roster.workers
    assert worker.id in leader.index.roster.workers, "it follows the rows as before"
