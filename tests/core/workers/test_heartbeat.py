from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState
from simpletuner_fleet.core.jobs.reconcile import MOST_STRAYS, Held
from simpletuner_fleet.core.workers.gpu_health import OCCUPIED, UNHEALTHY, Health
from simpletuner_fleet.core.workers.heartbeat import HeartbeatDecision, HeartbeatFacts, decide_heartbeat
from simpletuner_fleet.core.workers.worker import Connection, Worker
from tests.core.builders import NOW, POLICY, a_worker, an_attempt

NOTHING_NEW = HeartbeatDecision()
RUNNING = an_attempt("a_1", state=AttemptState.RUNNING, accepted_at=NOW - 1_000)


def decide(
    worker: Worker,
    *live: Attempt,
    expected: bool = True,
    reachable: bool = True,
    listening: bool = False,
    **facts: Any,
) -> HeartbeatDecision:
    return decide_heartbeat(
        worker,
        live,
        HeartbeatFacts(**facts),
        POLICY,
        expected=expected,
        reachable=reachable,
        listening=listening,
        now=NOW,
    )


def test_after_a_restore_what_runs_without_a_lease_is_given_up_and_stopped() -> None:
    held = (Held(RUNNING.job_id, RUNNING.epoch, started=True, paused=True),)
    decision = decide(a_worker(), RUNNING, held=held, listening=True)
    assert (decision.in_doubt, decision.strays) == ((RUNNING,), held)
    assert decide(a_worker(), RUNNING, held=held) == NOTHING_NEW


def test_a_heartbeat_that_says_what_is_known_changes_nothing() -> None:
    held = (Held(RUNNING.job_id, RUNNING.epoch, started=True),)
    health = {"GPU-w_1-0": Health(healthy=True, foreign_memory_gb=0.0)}
    assert decide(a_worker(), RUNNING, held=held, health=health) == NOTHING_NEW
    assert decide(a_worker()) == NOTHING_NEW
    assert decide(a_worker(legacy=True), reachable=False) == NOTHING_NEW


def test_a_worker_given_up_is_connected_again_and_can_be_reached() -> None:
    away = a_worker(connection=Connection.OFFLINE, offline_since=NOW - 5)
    decision = decide(away, expected=False, reachable=False)
    assert decision.came_back
    assert decision.worker == replace(away, connection=Connection.CONNECTED, offline_since=None)
    assert decision.reachable is True


@pytest.mark.parametrize("leaving", [False, True])
def test_a_worker_that_is_not_leaving_can_be_offered_jobs(leaving: bool) -> None:
    assert decide(a_worker(), reachable=leaving, leaving=leaving).reachable is not leaving
    assert decide(a_worker(), reachable=not leaving, leaving=leaving).reachable is None


def test_an_older_agent_is_reached_through_its_stream_alone() -> None:
    older = a_worker(legacy=True)
    assert decide(older, reachable=False).reachable is None
    assert decide(older, reachable=False, expected=False).reachable is True
    assert decide(older, reachable=True, leaving=True).reachable is False


def test_what_it_runs_and_nobody_expects_is_a_stray_unless_it_has_not_started() -> None:
    stray, waiting = Held("j_9", 9, started=True), Held("j_8", 8, started=False)
    own = Held(RUNNING.job_id, RUNNING.epoch, started=True)
    assert decide(a_worker(), RUNNING, held=(own, stray, waiting)).strays == (stray,)


def test_of_a_flood_of_strays_each_is_looked_at_in_one_of_the_next_heartbeats() -> None:
    flood = tuple(Held(f"j_{epoch}", epoch, started=True) for epoch in range(2 * MOST_STRAYS + 1))
    rounds = []
    while flood:
        rounds.append(decide(a_worker(), held=flood).strays)
        flood = tuple(one for one in flood if one not in rounds[-1])
    assert [len(each) for each in rounds] == [MOST_STRAYS, MOST_STRAYS, 1]


def test_a_gpu_that_is_broken_or_used_by_others_is_noted_but_not_one_that_we_use() -> None:
    worker = a_worker(gpus=2)
    broken = {"GPU-w_1-0": Health(healthy=False), "GPU-w_1-1": Health(foreign_memory_gb=40.0)}
    decision = decide(worker, health=broken)
    assert decision.worker is not None
    assert [gpu.unusable for gpu in decision.worker.gpus] == [UNHEALTHY, OCCUPIED]
    ours = an_attempt("a_1", gpus=("GPU-w_1-1",))
    decision = decide(worker, ours, health=broken)
    assert decision.worker is not None
    assert [gpu.unusable for gpu in decision.worker.gpus] == [UNHEALTHY, ""]


def test_what_its_cache_holds_is_noted_when_it_says_so() -> None:
    worker = a_worker(datasets=("d_1",))
    assert decide(worker, cache={"datasets": ("d_1",)}) == NOTHING_NEW
    changed = decide(worker, cache={"datasets": ("d_2",)}).worker
    assert changed is not None
    assert changed.datasets == ("d_2",)


def test_everything_that_changed_is_one_row() -> None:
    away = a_worker(connection=Connection.OFFLINE)
    decision = decide(
        away, health={"GPU-w_1-0": Health(healthy=False)}, cache={"data_bytes": 7}, reachable=False
    )
    row = decision.worker
    assert row is not None
    assert (row.connection, row.data_bytes, row.gpus[0].unusable) == (Connection.CONNECTED, 7, UNHEALTHY)


def test_an_older_agent_that_runs_nothing_has_lost_what_it_took_long_ago() -> None:
    older = a_worker(legacy=True)
    fresh = replace(RUNNING, id="a_2", accepted_at=NOW - 1)
    offered = replace(RUNNING, id="a_3", state=AttemptState.OFFERED, accepted_at=None)
    assert decide(older, RUNNING, fresh, offered, runs_nothing=True).lost == (RUNNING,)
    assert decide(older, RUNNING).lost == ()
    assert decide(a_worker(), RUNNING, runs_nothing=True).lost == ()


def test_an_older_agent_with_an_open_stream_is_connected_whatever_copy_of_its_registration_came_late() -> (
    None
):
    decision = decide(a_worker(legacy=True, connection=Connection.CONNECTING))
    assert decision.worker is not None
    assert decision.worker.connection is Connection.CONNECTED
    assert decide(a_worker(legacy=True, connection=Connection.CONNECTING), reachable=False).worker is None
    assert decide(a_worker(connection=Connection.CONNECTING)).worker is None
