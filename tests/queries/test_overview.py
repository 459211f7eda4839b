"""The fleet in one look, over the memory store."""

from collections.abc import Callable
from typing import Any

import pytest

from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.jobs.finding import JobSearch
from simpletuner_fleet.core.jobs.job import AttemptState, Hold, JobState, Outcome, Requirements, Results
from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.core.people.visibility import Visibility, VisibilityScope
from simpletuner_fleet.core.placement.matching import Occupancy
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import AdminState, Connection, Gpu, WorkerType
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.visibility import ScopedFleet
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.queries import finding, last_day, overview
from simpletuner_fleet.queries.explainer import MOST_GROUPS
from simpletuner_fleet.queries.free_now import gpu_kinds, largest_start
from simpletuner_fleet.queries.last_day import DAY_S
from simpletuner_fleet.queries.queue_stats import queue_stats
from simpletuner_fleet.store import MemoryStore
from tests.store.samples import BUNDLE, attempt, job, worker

NOW = 10 * DAY_S
HOUR_S = 3600.0
ENDED = AttemptState.ENDED


class StoppedClock:
    def now(self) -> float:
        return NOW


def gpus(
    count: int, name: str = "A100", vram_gb: float = 80.0, *, of: str = "", **more: Any
) -> tuple[Gpu, ...]:
    """Those `of` another machine are others."""
    return tuple(
        Gpu(index=at, uuid=f"GPU-{name}-{of}{at}", name=name, vram_gb=vram_gb, **more) for at in range(count)
    )


def connected(number: int, **given: Any) -> Any:
    fresh = {"connection": Connection.CONNECTED, "token_created_at": NOW, "trainers": ("simpletuner",)}
    return worker(number, **{**fresh, **given})


async def fleet_of(*steps: Callable[[Tx], object]) -> Fleet:
    store = MemoryStore()
    for step in steps:
        await store.write(step)
    return Fleet(store, FleetIndex(), StoppedClock(), RandomIds(b"s" * 32), StreamHub(), Policy())


def test_gpus_of_one_kind_are_counted_by_what_one_could_do_with_them() -> None:
    workers = [
        connected(1, gpus=gpus(4), max_jobs=4),
        connected(2, gpus=gpus(2, of="b"), admin=AdminState.DRAINING),
        connected(3, gpus=gpus(1, "RTX", 24.0)),
        connected(4, gpus=gpus(1, of="d", unusable="unhealthy")),
    ]
    occupancy = {
        "w_1": Occupancy(1, frozenset({"GPU-A100-0"})),
        "w_3": Occupancy(1, frozenset({"GPU-RTX-0"})),
    }
    a100, rtx = gpu_kinds(workers, occupancy)
    assert (a100.name, a100.free, a100.busy, a100.away) == ("A100", 3, 1, 3)
    assert (rtx.name, rtx.free, rtx.busy, rtx.away) == ("RTX", 0, 1, 0)
    assert largest_start(workers, occupancy) == 3


def test_a_worker_that_takes_no_second_job_has_no_free_gpu_and_those_nobody_holds_are_not_in_use() -> None:
    workers = [connected(1, gpus=gpus(4), max_jobs=1)]
    occupancy = {"w_1": Occupancy(1, frozenset({"GPU-A100-0"}))}
    (kind,) = gpu_kinds(workers, occupancy)
    assert (kind.free, kind.busy, kind.away) == (0, 1, 3)
    assert largest_start(workers, occupancy) == 0


def test_a_gpu_that_two_workers_offer_is_counted_once() -> None:
    workers = [connected(1, gpus=gpus(2), max_jobs=2), connected(2, gpus=gpus(2), max_jobs=2)]
    (idle,) = gpu_kinds(workers, {})
    assert (idle.free, idle.busy, idle.away) == (2, 0, 0)
    held = frozenset({"GPU-A100-0"})
    (kind,) = gpu_kinds(workers, {"w_1": Occupancy(1, held), "w_2": Occupancy(0, held, elsewhere=held)})
    assert (kind.free, kind.busy, kind.away) == (1, 1, 0)


async def test_what_does_not_mend_itself_is_named_and_the_rest_is_not() -> None:
    away = {"connection": Connection.OFFLINE, "offline_since": NOW - 60}
    fleet = await fleet_of(
        lambda tx: tx.add_worker(connected(1, gpus=gpus(1))),
        lambda tx: tx.add_worker(connected(2, chosen_type=WorkerType.PERSISTENT, **away)),
        lambda tx: tx.add_worker(connected(3, chosen_type=WorkerType.EPHEMERAL, **away)),
        lambda tx: tx.add_worker(connected(4, token_created_at=NOW - 100 * DAY_S)),
        lambda tx: tx.add_job(job(1, state=JobState.FAILED, finished_at=NOW - HOUR_S, name="fox"), BUNDLE),
        lambda tx: tx.add_job(job(2, state=JobState.FAILED, finished_at=NOW - 2 * DAY_S), BUNDLE),
        lambda tx: tx.add_job(job(3, requires=Requirements(gpus=64), class_id="c_big"), BUNDLE),
        lambda tx: tx.add_job(job(4, state=JobState.BLOCKED, hold=Hold.APPROVAL), BUNDLE),
    )
    seen = await overview.look(fleet, None)
    needs = {need.kind: (need.count, [name for _, name in need.named]) for need in seen.needs}
    assert needs == {
        "workers_away": (1, ["gpu-2"]),
        "jobs_failed": (1, ["fox"]),
        "jobs_hopeless": (1, ["sdxl"]),
        "jobs_unapproved": (1, ["sdxl"]),
        "tokens_old": (1, ["gpu-4"]),
    }


async def test_the_line_is_counted_by_reason_and_its_first_are_shown() -> None:
    fleet = await fleet_of(
        lambda tx: tx.add_worker(connected(1, gpus=gpus(1))),
        *(
            (lambda tx, number=number: tx.add_job(job(number, requires=Requirements(gpus=9)), BUNDLE))
            for number in range(1, 6)
        ),
    )
    line = (await overview.look(fleet, None)).line
    assert line
    assert (line.waiting, line.by_reason, line.oldest_at) == (5, {"GPU_COUNT_TOO_LARGE": 5}, 101.0)
    assert [one.job.id for one in line.first] == ["j_1", "j_2", "j_3"]


async def test_the_first_in_line_that_a_caller_sees_stand_where_they_stand() -> None:
    hidden = {"owner": "u_ben", "visibility": Visibility.PRIVATE}
    fleet = await fleet_of(
        *((lambda tx, number=number: tx.add_job(job(number, **hidden), BUNDLE)) for number in (1, 3, 4)),
        *((lambda tx, number=number: tx.add_job(job(number), BUNDLE)) for number in (2, 5)),
    )
    anna = ScopedFleet(fleet, lambda: VisibilityScope(ids=frozenset({"u_anna"})))
    line = (await overview.look(anna, None)).line
    assert line
    assert [(one.job.id, one.position) for one in line.first] == [("j_2", 2), ("j_5", 5)]


def of_another_kind(number: int) -> Callable[[Tx], object]:
    asked = Requirements(gpus=9, labels=(("rack", f"r{number}"),))
    return lambda tx: tx.add_job(job(number, requires=asked, class_id=f"c_{number}"), BUNDLE)


async def test_more_kinds_of_waiting_jobs_than_are_asked_are_counted_as_the_least_there_is() -> None:
    there = await fleet_of(*(of_another_kind(number) for number in range(1, MOST_GROUPS + 1)))
    line = (await overview.look(there, None)).line
    assert line
    assert (sum(line.by_reason.values()), line.at_least) == (MOST_GROUPS, False)
    await there.store.write(of_another_kind(MOST_GROUPS + 1))
    await there.store.write(lambda tx: tx.add_job(job(900, class_id="c_1", created_at=0.5), BUNDLE))
    seen = await overview.look(there, None)
    stats = await queue_stats(there)
    page = await finding.find(there, JobSearch(reason="impossible"), lambda text, _: None, limit=5)
    assert seen.line
    assert (seen.line.waiting, seen.line.at_least) == (MOST_GROUPS + 2, True)
    assert (stats.reasons_counted, stats.reasons_at_least) == (MOST_GROUPS + 1, True)
    assert page.at_least


async def test_somebody_is_told_of_the_own_jobs_alone_and_of_machines_only_if_they_look_after_them() -> None:
    away = {"connection": Connection.OFFLINE, "chosen_type": WorkerType.PERSISTENT}
    fleet = await fleet_of(
        lambda tx: tx.add_worker(connected(1, **away)),
        lambda tx: tx.add_job(job(1, state=JobState.FAILED, finished_at=NOW, owner="u_anna"), BUNDLE),
        lambda tx: tx.add_job(job(2, state=JobState.FAILED, finished_at=NOW, owner="u_ben"), BUNDLE),
        lambda tx: tx.add_job(job(3, requires=Requirements(gpus=64), owner="u_ben"), BUNDLE),
    )
    seen = await overview.look(fleet, "u_anna", machines=False)
    assert [(need.kind, need.count) for need in seen.needs] == [("jobs_failed", 1)]


async def test_mine_are_the_jobs_of_one_owner() -> None:
    fleet = await fleet_of(
        lambda tx: tx.add_job(job(1, state=JobState.RUNNING, owner="u_anna"), BUNDLE),
        lambda tx: tx.add_job(job(2, state=JobState.RUNNING, owner="u_ben"), BUNDLE),
        lambda tx: tx.add_job(job(3, owner="u_anna"), BUNDLE),
        lambda tx: tx.add_job(job(4, state=JobState.COMPLETED, owner="u_anna"), BUNDLE),
    )
    mine = (await overview.look(fleet, "u_anna")).mine
    everybody = (await overview.look(fleet, None)).mine
    shown = [[one.job.id for one in part] for part in (mine.running, mine.waiting, mine.ended)]
    assert shown == [["j_1"], ["j_3"], ["j_4"]]
    assert [one.job.id for one in everybody.running] == ["j_2", "j_1"]


async def test_a_lane_has_runs_and_spans_of_absence_within_the_last_day() -> None:
    def changed(at: float, was: str, now: str) -> Callable[[Tx], object]:
        event = Event(
            type=EventType.WORKER_STATUS_CHANGED,
            actor=ORCHESTRATOR,
            target_type="worker",
            target_id="w_1",
            details={"from": was, "to": now},
        )
        return lambda tx: tx.append_audit(at, [event])

    run = {"accepted_at": NOW - 30 * HOUR_S, "ended_at": NOW - 20 * HOUR_S, "gpus": ("GPU-1",)}
    fleet = await fleet_of(
        lambda tx: tx.add_worker(connected(1, gpus=gpus(1))),
        lambda tx: tx.add_job(job(1, state=JobState.RUNNING, name="fox"), BUNDLE),
        lambda tx: tx.add_attempt(attempt(1, state=ENDED, outcome=Outcome.LOST, **run)),
        lambda tx: tx.add_attempt(attempt(2, state=AttemptState.RUNNING, accepted_at=NOW - HOUR_S)),
        changed(NOW - 10 * HOUR_S, "idle", "offline"),
        changed(NOW - 9 * HOUR_S, "offline", "idle"),
    )
    (lane,) = (await last_day.lanes_of(fleet)).lanes
    assert [(bar.start, bar.end, bar.outcome) for bar in lane.bars] == [
        (NOW - DAY_S, NOW - 20 * HOUR_S, "lost"),
        (NOW - HOUR_S, NOW, ""),
    ]
    assert lane.away == ((NOW - 10 * HOUR_S, NOW - 9 * HOUR_S),)


async def test_a_worker_that_is_away_now_has_been_so_since_it_left() -> None:
    gone = {"connection": Connection.OFFLINE, "offline_since": NOW - 2 * HOUR_S}
    fleet = await fleet_of(lambda tx: tx.add_worker(connected(1, **gone)))
    (lane,) = (await last_day.lanes_of(fleet)).lanes
    assert lane.away == ((NOW - 2 * HOUR_S, NOW),)


async def test_gpu_hours_are_summed_by_owner_for_a_week() -> None:
    two = ("GPU-1", "GPU-2")
    fleet = await fleet_of(
        lambda tx: tx.add_job(job(1, owner="u_anna", state=JobState.RUNNING), BUNDLE),
        lambda tx: tx.add_job(job(2, owner="u_ben", state=JobState.COMPLETED), BUNDLE),
        lambda tx: tx.add_attempt(
            attempt(1, state=AttemptState.RUNNING, accepted_at=NOW - 3 * HOUR_S, gpus=two)
        ),
        lambda tx: tx.add_attempt(
            attempt(
                2,
                job_id="j_2",
                state=ENDED,
                outcome=Outcome.COMPLETED,
                accepted_at=NOW - 9 * DAY_S,
                ended_at=NOW - 7 * DAY_S + HOUR_S,
                gpus=two[:1],
            )
        ),
    )
    assert await last_day.gpu_hours(fleet) == [("u_anna", 6.0), ("u_ben", 1.0)]


async def test_gpu_hours_are_exact_however_many_attempts_there_were() -> None:
    """Each lasts two hours, the first of them before the week that is asked for."""
    often = 3_200

    def week(tx: Tx) -> None:
        tx.add_job(job(1, owner="u_anna", state=JobState.COMPLETED), BUNDLE)
        for number in range(1, often + 1):
            ended_at = NOW - 7 * DAY_S + HOUR_S + (number - 1) * 60.0
            tx.add_attempt(
                attempt(
                    number,
                    state=ENDED,
                    outcome=Outcome.FAILED,
                    accepted_at=ended_at - 2 * HOUR_S,
                    ended_at=ended_at,
                    gpus=("GPU-1",),
                )
            )

    fleet = await fleet_of(week)
    ((owner, hours),) = await last_day.gpu_hours(fleet)
    assert owner == "u_anna"
    # The first sixty began before the week: of the first an hour is counted, of each later one a minute more.
    assert hours == pytest.approx(2 * often - sum(1 - number / 60 for number in range(60)))


async def test_a_day_with_too_many_attempts_to_draw_says_from_when_on_they_are_drawn() -> None:
    def day(count: int) -> Callable[[Tx], None]:
        ended = {"job_id": "j_1", "state": ENDED, "outcome": Outcome.FAILED}

        def step(tx: Tx) -> None:
            tx.add_job(job(1, state=JobState.FAILED), BUNDLE)
            for number in range(1, count + 1):
                began, over = NOW - HOUR_S, NOW - HOUR_S + number
                tx.add_attempt(attempt(number, **ended, accepted_at=began, ended_at=over))

        return step

    few = await last_day.lanes_of(await fleet_of(day(last_day.MOST_BARS - 1)))
    many = await last_day.lanes_of(await fleet_of(day(last_day.MOST_BARS + 10)))
    assert (few.not_before, many.not_before) == (None, NOW - HOUR_S + 11)


async def test_a_machine_without_gpus_has_room_for_a_job_that_needs_none() -> None:
    fleet = await fleet_of(lambda tx: tx.add_worker(connected(1)))
    seen = await overview.look(fleet, None)
    assert (seen.free.starts_now, seen.free.room, seen.free.workers) == (0, True, 1)


async def test_a_worker_whose_results_are_still_on_their_way_is_busy_though_its_place_is_free() -> None:
    finishing = job(
        1,
        state=JobState.RUNNING,
        results=Results.PENDING,
        progress=Progress(phase="finishing"),
        attempt_id="a_1",
        worker_id="w_1",
    )
    fleet = await fleet_of(
        lambda tx: tx.add_worker(connected(1, gpus=gpus(1))),
        lambda tx: tx.add_job(finishing, BUNDLE),
        lambda tx: tx.add_attempt(
            attempt(1, state=AttemptState.RUNNING, accepted_at=NOW - HOUR_S, gpus=("GPU-A100-0",))
        ),
    )
    seen = await overview.look(fleet, None)
    assert [lane.status for lane in (await last_day.lanes_of(fleet)).lanes] == ["busy"]
    assert seen.free.starts_now == 1


async def test_what_is_left_out_of_a_busy_day_ended_before_the_time_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What runs since long is drawn however many ran since, and so is what began early and ended late."""
    monkeypatch.setattr(last_day, "MOST_BARS", 3)

    def step(tx: Tx) -> None:
        tx.add_worker(connected(1, gpus=gpus(1)))
        tx.add_job(job(1, state=JobState.RUNNING), BUNDLE)
        began = NOW - 5 * HOUR_S
        tx.add_attempt(attempt(1, state=AttemptState.RUNNING, accepted_at=began))
        for number, over in ((2, NOW - 1.0), (3, NOW - 40.0), (4, NOW - 30.0), (5, NOW - 20.0)):
            tx.add_attempt(
                attempt(number, state=ENDED, outcome=Outcome.FAILED, accepted_at=began, ended_at=over)
            )

    day = await last_day.lanes_of(await fleet_of(step))
    assert day.not_before == NOW - 30.0
    assert [bar.end for bar in day.lanes[0].bars] == [NOW, NOW - 1.0, NOW - 30.0, NOW - 20.0]


async def test_a_day_of_which_not_every_absence_is_read_says_from_when_on_it_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(last_day, "MOST_CHANGES", 3)

    def changed(at: float, was: str, now: str) -> Callable[[Tx], object]:
        event = Event(
            type=EventType.WORKER_STATUS_CHANGED,
            actor=ORCHESTRATOR,
            target_type="worker",
            target_id="w_1",
            details={"from": was, "to": now},
        )
        return lambda tx: tx.append_audit(at, [event])

    fleet = await fleet_of(
        lambda tx: tx.add_worker(connected(1, gpus=gpus(1))),
        lambda tx: tx.add_job(job(1, state=JobState.FAILED), BUNDLE),
        lambda tx: tx.add_attempt(
            attempt(1, state=ENDED, outcome=Outcome.FAILED, accepted_at=1.0, ended_at=NOW - 9 * HOUR_S)
        ),
        changed(NOW - 8 * HOUR_S, "idle", "offline"),
        changed(NOW - 7 * HOUR_S, "offline", "idle"),
        changed(NOW - 3 * HOUR_S, "idle", "busy"),
        changed(NOW - 2 * HOUR_S, "busy", "idle"),
    )
    day = await last_day.lanes_of(fleet)
    assert day.not_before == NOW - 7 * HOUR_S
    assert day.lanes[0].bars == (), "when it was away then is not known either"
