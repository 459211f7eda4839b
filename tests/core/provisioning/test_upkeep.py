"""Machines that are there: compared with the list, with their workers and with the money."""

from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.provisioning.machine import Machine, MachineEndReason, MachineState
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.core.provisioning.upkeep import WorkerFacts, strays, tended
from tests.core.builders import NOW
from tests.core.provisioning.provisioning_kit import (
    SETTLE_S,
    a_machine,
    a_pool,
    a_snapshot,
    an_upkeep,
    idle,
    listed,
    working,
)

ASKED, BOOTING, JOINED = MachineState.ASKED, MachineState.BOOTING, MachineState.JOINED
DRAINING, DESTROYING, GONE = MachineState.DRAINING, MachineState.DESTROYING, MachineState.GONE


def after(
    machine: Machine,
    facts: WorkerFacts | None = None,
    *,
    pool: MachinePool | None = None,
    shown: Any = "itself",
    at: float = NOW,
    **fields: Any,
) -> Machine:
    shown = [listed(machine)] if shown == "itself" else shown
    snapshot = None if shown is None else a_snapshot(*shown, at=at)
    workers = {machine.worker_id: facts} if facts else {}
    (result,) = tended([machine], an_upkeep(pool or a_pool(), snapshot, workers, **fields))
    return result


def test_a_machine_whose_answer_was_lost_is_adopted_by_its_name() -> None:
    lost = a_machine(state=ASKED, asked_at=NOW - 100.0)
    adopted = after(lost)
    assert (adopted.state, adopted.provider_id) == (BOOTING, "p_m_1")


def test_one_that_was_asked_for_is_given_up_only_after_the_list_had_time_to_show_it() -> None:
    asked = a_machine(state=ASKED, asked_at=NOW - 100.0)
    missing = after(asked, shown=[], at=NOW)
    assert (missing.state, missing.missing_since) == (ASKED, NOW)
    still = after(missing, shown=[], at=NOW + SETTLE_S - 1)
    assert still.state is ASKED
    gone = after(still, shown=[], at=NOW + SETTLE_S)
    assert (gone.state, gone.why) == (GONE, MachineEndReason.NEVER_MADE)


def test_a_list_that_was_asked_for_before_the_machine_says_nothing_of_it() -> None:
    asked = a_machine(state=ASKED, asked_at=NOW - 5.0)
    assert after(asked, shown=[], at=NOW - 10.0).missing_since is None


def test_without_a_list_nothing_vanishes() -> None:
    booting = a_machine(state=BOOTING, asked_at=NOW - 100.0, missing_since=NOW - 5000.0)
    assert after(booting, shown=None) == booting


def test_one_that_is_listed_again_was_never_missing() -> None:
    booting = a_machine(state=BOOTING, asked_at=NOW - 100.0, missing_since=NOW - 50.0)
    assert after(booting).missing_since is None


def test_a_machine_whose_worker_is_heard_is_there_whatever_the_list_says() -> None:
    machine = a_machine(missing_since=NOW - 5000.0)
    assert after(machine, working(), shown=[]).state is JOINED
    quiet = working(connected=False, offline_since=NOW - 10.0)
    assert after(machine, quiet, shown=[]).state is GONE


@pytest.mark.parametrize("state", [ASKED, BOOTING])
def test_one_that_does_not_join_in_time_is_destroyed(state: MachineState) -> None:
    late = after(a_machine(state=state, asked_at=NOW - 900.0))
    assert (late.state, late.why) == (DESTROYING, MachineEndReason.BOOT_DEADLINE)
    assert after(a_machine(state=state, asked_at=NOW - 899.0)).state is BOOTING


def test_after_a_start_those_who_were_awaited_before_it_get_time_to_be_heard_and_others_need_none() -> None:
    before, since = a_machine(state=BOOTING, asked_at=NOW - 950.0), NOW - 910.0
    soon = a_pool(boot_s=100.0)
    assert after(before, pool=soon, listening_since=NOW - 60.0).state is BOOTING
    assert after(before, pool=soon, listening_since=since).state is DESTROYING
    asked_since = a_machine(state=BOOTING, asked_at=NOW - 100.0)
    assert after(asked_since, pool=soon, listening_since=NOW - 110.0).why == MachineEndReason.BOOT_DEADLINE
    away = WorkerFacts(connected=False, busy=False, idle_since=NOW, offline_since=NOW - 100.0)
    assert after(a_machine(), away, pool=soon, listening_since=NOW - 90.0).state is JOINED
    assert after(a_machine(), away, pool=soon, listening_since=NOW - 110.0).why == MachineEndReason.LOST


def test_idle_machines_are_drained_and_destroyed_at_once() -> None:
    ended = after(a_machine(), idle(NOW - 600.0))
    assert (ended.state, ended.why) == (DESTROYING, MachineEndReason.IDLE)
    assert after(a_machine(), idle(NOW - 599.0)).state is JOINED
    assert after(a_machine(), working(idle_since=NOW - 5000.0)).state is JOINED


def test_unknown_is_active() -> None:
    """A worker that is not heard may be at work: its machine is not idle, however long ago its last job was."""
    quiet = WorkerFacts(connected=False, busy=False, idle_since=NOW - 90_000.0, offline_since=NOW - 899.0)
    assert after(a_machine(), quiet).state is JOINED


def test_a_machine_whose_worker_stays_away_is_destroyed_unless_it_holds_a_job() -> None:
    away = WorkerFacts(connected=False, busy=False, idle_since=NOW, offline_since=NOW - 900.0)
    lost = after(a_machine(), away)
    assert (lost.state, lost.why) == (DESTROYING, MachineEndReason.LOST)
    holds = WorkerFacts(connected=False, busy=True, idle_since=NOW, offline_since=NOW - 9000.0)
    assert after(a_machine(), holds).state is JOINED


def test_one_that_has_done_its_one_job_goes_as_soon_as_its_worker_has_left() -> None:
    left = WorkerFacts(connected=False, busy=False, idle_since=NOW, offline_since=NOW - 1.0, leaves=True)
    assert after(a_machine(), left).why == MachineEndReason.LEFT


def test_a_machine_that_its_provider_stopped_is_destroyed_for_it_may_still_cost() -> None:
    stopped = [listed(a_machine(), runs=False)]
    away = WorkerFacts(connected=False, busy=False, idle_since=NOW, offline_since=NOW - 1.0)
    assert after(a_machine(), away, shown=stopped).why == MachineEndReason.LEFT
    booting = a_machine(state=BOOTING, asked_at=NOW - 10.0)
    assert after(booting, shown=[listed(booting, runs=False)]).state is DESTROYING


def test_what_a_provider_says_of_a_machine_is_told_until_it_says_it_no_more() -> None:
    booting = a_machine(state=BOOTING, asked_at=NOW - 10.0)
    unplaced = after(booting, shown=[listed(booting, note="Unschedulable: no GPU")])
    assert unplaced.detail == "Unschedulable: no GPU"
    assert after(unplaced, shown=[listed(unplaced)]).detail == "Unschedulable: no GPU", (
        "its list says no such things"
    )
    assert after(unplaced, shown=[listed(unplaced, note="")]).detail == ""
    ending = replace(unplaced, state=DESTROYING, detail="403: it may not be deleted")
    assert after(ending, shown=[listed(unplaced, note="")]).detail == "403: it may not be deleted"


def test_a_machine_whose_worker_was_deleted_is_destroyed() -> None:
    assert after(a_machine()).why == MachineEndReason.WORKER_DELETED


def test_so_many_as_the_pool_keeps_are_never_idle() -> None:
    machines = [a_machine(f"m_{number}") for number in range(3)]
    workers = {machine.worker_id: idle() for machine in machines}
    snapshot = a_snapshot(*(listed(machine) for machine in machines))
    kept = tended(machines, an_upkeep(a_pool(min_machines=2), snapshot, workers))
    assert [machine.state for machine in kept] == [DESTROYING, JOINED, JOINED]


def test_a_deleted_pool_lets_jobs_finish_and_then_its_machines_go() -> None:
    gone = a_pool(deleted_at=NOW)
    busy = after(a_machine(), working(), pool=gone)
    assert (busy.state, busy.why, busy.stop_by) == (DRAINING, MachineEndReason.POOL_DELETED, None)
    assert after(busy, working(), pool=gone).state is DRAINING
    assert after(busy, idle(NOW), pool=gone).state is DESTROYING
    assert after(a_machine(state=BOOTING, asked_at=NOW - 9.0), pool=gone).state is DESTROYING


def test_when_the_budget_is_used_up_jobs_are_stopped_in_time_or_let_finish() -> None:
    stopped = after(a_machine(), working(), budget_over=True, lead_s=500.0)
    assert (stopped.state, stopped.why, stopped.stop_by) == (DRAINING, MachineEndReason.BUDGET, NOW + 500.0)
    finishes = a_pool(over_budget="finish")
    last = after(a_machine(), working(), pool=finishes, budget_over=True)
    assert (last.state, last.stop_by) == (DRAINING, None), (
        "it takes no further job, or it would never be idle"
    )
    assert after(a_machine(), idle(NOW), pool=finishes, budget_over=True).state is DESTROYING
    overdue = a_machine(state=DRAINING, stop_by=NOW, why=MachineEndReason.BUDGET)
    assert after(overdue, working()).state is DESTROYING


def test_a_price_above_the_ceiling_ends_a_machine_that_boots_and_drains_one_that_works() -> None:
    pool = a_pool(max_price_micros=2_000_000)
    booting = a_machine(state=BOOTING, asked_at=NOW - 10.0)
    assert (
        after(booting, shown=[listed(booting, hourly_micros=2_500_000)], pool=pool).why
        == MachineEndReason.PRICE
    )
    works = after(a_machine(), working(), shown=[listed(a_machine(), hourly_micros=2_500_000)], pool=pool)
    assert (works.state, works.why) == (DRAINING, MachineEndReason.PRICE)


@pytest.mark.parametrize(("policy", "stop_by"), [("stop", NOW + 500.0), ("finish", None)])
def test_where_prices_rise_above_the_limit_of_an_hour_the_least_useful_go(
    policy: str, stop_by: float | None
) -> None:
    older, newer = a_machine("m_1", created_at=NOW - 2000.0), a_machine("m_2")
    rests, boots = a_machine("m_3"), a_machine("m_4", state=BOOTING, asked_at=NOW - 10.0)
    workers = {older.worker_id: working(), newer.worker_id: working(), rests.worker_id: idle(NOW)}
    there = [older, newer, rests, boots]
    snapshot = a_snapshot(*(listed(one, hourly_micros=3_000_000) for one in there))

    def left(max_hourly_micros: int) -> list[Machine]:
        pool = a_pool(max_hourly_micros=max_hourly_micros, over_budget=policy)
        return tended(there, an_upkeep(pool, snapshot, workers, lead_s=500.0))

    assert [one.state for one in left(12_000_000)] == [JOINED, JOINED, JOINED, BOOTING]
    assert [one.state for one in left(11_000_000)] == [JOINED, JOINED, JOINED, DESTROYING]
    assert [one.state for one in left(8_000_000)] == [JOINED, JOINED, DESTROYING, DESTROYING]
    one, other, *gone = left(5_000_000)
    assert [one.state, other.state, other.stop_by] == [JOINED, DRAINING, stop_by]
    assert {machine.why for machine in (other, *gone)} == {MachineEndReason.BUDGET}
    waits = tended([one, other], an_upkeep(a_pool(max_hourly_micros=5_000_000), snapshot, workers))
    assert waits[0].state is JOINED, "the other one goes already"


def test_what_appears_after_it_was_gone_is_destroyed_again() -> None:
    gone = a_machine(state=GONE, gone_at=NOW - 100.0, why=MachineEndReason.IDLE)
    back = after(gone)
    assert (back.state, back.why) == (DESTROYING, MachineEndReason.STRAY)
    assert after(gone, at=NOW - 200.0) == gone


def test_a_leftover_wish_is_dropped_for_nobody_was_asked() -> None:
    wanted = a_machine(state=MachineState.WANTED)
    assert after(wanted).state is GONE


def test_a_wish_that_waits_for_its_turn_stays_unless_something_forbids_it() -> None:
    wanted = a_machine(state=MachineState.WANTED, asked_at=NOW - 10.0, hourly_micros=3_000_000)
    turn = frozenset({wanted.id})

    def left(pool: MachinePool, *, answers: bool = True, **fields: Any) -> Machine:
        snapshot = a_snapshot() if answers else None
        return tended([wanted], an_upkeep(pool, snapshot, under_way=turn, **fields))[0]

    assert left(a_pool()) == wanted
    assert left(a_pool(), answers=False).state is GONE, "nobody knows what the provider has"
    assert left(a_pool(enabled=False)).state is GONE
    assert left(a_pool(deleted_at=NOW)).state is GONE
    assert left(a_pool(), budget_over=True).state is GONE
    too_dear = left(a_pool(max_hourly_micros=2_000_000))
    assert (too_dear.state, too_dear.why) == (GONE, MachineEndReason.BUDGET)


def test_strays_are_ours_by_name_and_nobodys_by_row() -> None:
    known = a_machine(state=ASKED)
    twin = listed(known, provider_id="p_second")
    first = listed(known, provider_id="p_first")
    ours = listed(a_machine("m_9"), provider_id="p_9")
    theirs = listed(a_machine("m_8"), name="stf-other-m_8", provider_id="p_8")
    snapshot = a_snapshot(first, twin, ours, theirs)
    assert strays(snapshot, [known], "stf-f1-") == [twin, ours]
    settled = a_machine(state=BOOTING, provider_id="p_second")
    assert strays(snapshot, [settled], "stf-f1-") == [first, ours]
